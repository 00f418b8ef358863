"""One writer at a time: the living are respected, the dead succeeded, and those who come back write nothing."""

import contextlib
import errno
import os
import subprocess
import threading
import time

import pytest
from kanawa.contracts import CheckpointSaveError, LeaseHeldError, LeaseLostError, StorageError, open_storage
from kanawa_runtime.checkpoint import OrbaxCheckpointer, ShardedCheckpointer
from kanawa_runtime.checkpoint.roots.objects import COMMITS, commits_lease
from kanawa_runtime.storage import local
from kanawa_runtime.storage.lease import StorageLease, this_process

from ..checkpoint.checkpoint_trees import abstract, assert_bitwise, make_trees

NEVER = 1e6
MANY = int(os.environ.get("KANAWA_DRILLS", "100"))


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path):
    return f"file://{tmp_path}" if request.param == "file" else request.getfixturevalue("address")


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """Ends the leases that a test leaves held."""
    made = []
    begin = StorageLease.__init__
    monkeypatch.setattr(StorageLease, "__init__", lambda self, *a, **more: made.append(self) or begin(self, *a, **more))
    yield
    for each in made:
        each.release()


def lease(place, name="here", renew=0.1, ttl=0.6, **options):
    """Returns a lease of a holder whose process nobody here can look up, unless it is named "here"."""
    holder = this_process() | ({} if name == "here" else {"host": name})
    return StorageLease(open_storage(place), "lease", holder=holder, ttl_seconds=ttl, renew_seconds=renew, **options)


def test_the_living_are_respected_within_a_few_renewals(place):
    first = lease(place, "one", ttl=300)
    assert first.acquire() == 1
    began = time.monotonic()
    with pytest.raises(LeaseHeldError, match=r"is being written by process \d+ on one since .*another --run directory"):
        lease(place, "two", ttl=300).acquire()
    # Renewed within that, however slow the machine; who did not look would wait for all of it.
    assert time.monotonic() - began < 150
    first.release()
    assert lease(place, "two").acquire() == 2


def test_the_dead_of_this_machine_are_succeeded_at_once(place):
    gone = subprocess.Popen(["true"])
    gone.wait()
    pid = gone.pid
    holder = this_process() | {"pid": pid}
    dead = StorageLease(open_storage(place), "lease", holder=holder, ttl_seconds=300, renew_seconds=NEVER)
    assert dead.acquire() == 1
    began = time.monotonic()
    assert lease(place, ttl=300).acquire() == 2
    assert time.monotonic() - began < 150


def test_the_dead_elsewhere_are_succeeded_after_a_while_and_write_no_more(place):
    zombie = lease(place, "one", renew=NEVER)
    zombie.acquire()
    zombie.record(lambda facts: facts.update(steps=[2]))
    heir = lease(place, "two")
    began = time.monotonic()
    assert heir.acquire() == 2
    assert time.monotonic() - began >= 0.6
    assert heir.facts == {"steps": [2]}
    for attempt in (lambda: zombie.record(lambda facts: facts.update(steps=[9])), zombie.check):
        with pytest.raises(
            LeaseLostError, match=r"taken over by process \d+ on two since .* with token 2 \(this process"
        ):
            attempt()
    zombie.release()
    assert (heir.facts, heir.storage.sizes().keys()) == ({"steps": [2]}, {"lease"})
    heir.check()
    heir.release()


def race(place, token):
    """Lets three take a free lease at once; returns the winners."""
    won, start = [], threading.Barrier(3)

    def run(name):
        start.wait()
        mine = lease(place, name, ttl=30)
        with contextlib.suppress(LeaseHeldError):
            won.append((mine.acquire(), mine))

    threads = [threading.Thread(target=run, args=(f"{token}-{name}",)) for name in "abc"]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return won


def races(place, count):
    for token in range(1, count + 1):
        ((taken, winner),) = race(place, token)
        assert taken == token
        winner.release()


def test_a_few_races_have_one_winner_each(place):
    races(place, 4)


@pytest.mark.nightly
def test_many_races_have_one_winner_each(place, record_drill):
    races(place, MANY)
    record_drill(f"drill: {MANY} of {MANY} races for a lease on {place[:5]} had one winner")


def renewed(mine, before):
    """Returns whether a record soon is another one."""
    deadline = time.monotonic() + 60
    while mine.storage.read("lease") == before and time.monotonic() < deadline:
        time.sleep(0.02)
    return mine.storage.read("lease") != before


def test_renewals_wake_no_disk_but_what_counts_is_durable(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or fsync(descriptor))
    mine = lease(f"file://{tmp_path}", renew=0.02)
    mine.acquire()
    taken, before = len(synced), mine.storage.read("lease")
    assert taken > 0
    assert renewed(mine, before)
    assert len(synced) == taken
    mine.record(lambda facts: facts.update(step=1))
    assert len(synced) > taken


def test_a_record_of_flipped_bits_is_no_record_and_tokens_still_rise(place):
    first = lease(place)
    first.acquire()
    first.release()
    data = bytearray(first.storage.read("lease"))
    data[len(data) // 2] ^= 1
    first.storage.write("lease", data)
    assert lease(place, lowest_token=lambda: 7).acquire() == 8


def test_a_storage_that_fails_a_while_costs_no_lease(address, server):
    mine = lease(address)
    mine.acquire()
    server.fail()
    time.sleep(0.5)
    with pytest.raises(StorageError):
        mine.check()
    server.mend()
    mine.check()
    server.client().delete_object(Bucket="bucket", Key=f"{address.partition('bucket/')[2]}/lease")
    mine.check()
    mine.release()


def test_a_write_of_ours_that_was_taken_for_failed_is_no_taking_over(tmp_path, monkeypatch):
    mine = lease(f"file://{tmp_path}", renew=NEVER)
    mine.acquire()
    replace = mine.storage.replace

    def answer_is_lost(*arguments):
        replace(*arguments)
        monkeypatch.setattr(mine.storage, "replace", replace)
        message = "no answer"
        raise StorageError(message)

    monkeypatch.setattr(mine.storage, "replace", answer_is_lost)
    with pytest.raises(StorageError, match="no answer"):
        mine.record(lambda facts: facts.update(step=1))
    mine.record(lambda facts: facts.update(step=2))
    assert (mine.token, mine.facts) == (1, {"step": 2})


def test_a_lock_service_that_is_away_a_while_ends_no_renewals(tmp_path, monkeypatch):
    mine = lease(f"file://{tmp_path}", renew=0.05)
    mine.acquire()

    def refused(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(local.fcntl, "flock", refused)
        with pytest.raises(StorageError, match=r"lock can't be locked: No locks available"):
            mine.check()
        time.sleep(0.2)
    assert renewed(mine, mine.storage.read("lease"))


# --- the steps of a run that changes hands ---------------------------------------------------------------------------


@pytest.fixture(params=["orbax", "folder", "s3"])
def hands(request, tmp_path):
    """Returns a function that takes the lease as some holder and returns it with a checkpointer."""
    directory = request.getfixturevalue("address") if request.param == "s3" else tmp_path / "checkpoints"
    kind = OrbaxCheckpointer if request.param == "orbax" else ShardedCheckpointer

    def take(name, renew=0.1):
        options = {"holder": this_process() | {"host": name}, "ttl_seconds": 0.4, "renew_seconds": renew}
        if request.param != "s3":
            taken = StorageLease(open_storage(f"file://{tmp_path}"), ".lease.json", **options)
        else:
            taken = commits_lease(open_storage(directory), **options)
        taken.acquire()
        return taken, kind.Config().build(directory=directory, lease=taken)

    return take


def save(checkpointer, step, seed, **more):
    checkpointer.save(step, **make_trees(seed), data={"seed": seed}, meta={}, **more)


def hand_over(hands, step):
    """Lets a zombie commit a step that its heir saves as well; returns what the heir has then."""
    zombie_lease, zombie = hands("one", NEVER)
    save(zombie, step, 1)
    zombie.wait()
    save(zombie, step + 1, 66, provisional=True)
    heir_lease, heir = hands("two")
    assert heir_lease.token == zombie_lease.token + 1
    heir_saves = threading.Thread(target=save, args=(heir, step + 1, 2))
    heir_saves.start()
    zombie.commit(step + 1)
    with pytest.raises((LeaseLostError, CheckpointSaveError)):
        zombie.wait()
    with pytest.raises(LeaseLostError, match="It changed nothing of the other one's, and writes nothing more"):
        save(zombie, step + 2, 66) or zombie.wait()
    heir_saves.join()
    heir.wait()
    restored = heir.restore(abstract(make_trees()))
    assert_bitwise(restored.items, make_trees(2))
    assert (restored.step, restored.data, dict(restored.damaged)) == (step + 1, {"seed": 2}, {})
    assert heir.steps()[-2:] == [step, step + 1]
    heir.close()
    heir_lease.release()


def test_what_a_zombie_commits_late_does_not_count_and_mixes_with_nothing(hands):
    hand_over(hands, 4)


@pytest.mark.nightly
def test_many_hand_overs_mix_nothing(hands, record_drill):
    for index in range(MANY // 2):
        hand_over(hands, 10 * index + 4)
    record_drill(f"drill: {MANY // 2} of {MANY // 2} late commits were refused, 0 mixed steps")


def test_a_record_of_commits_that_is_gone_is_rebuilt_from_what_lies_there(address):
    taken = commits_lease(open_storage(address))
    taken.acquire()
    writer = ShardedCheckpointer.Config().build(directory=address, lease=taken)
    save(writer, 2, 2)
    writer.close()
    taken.release()
    open_storage(address).delete([COMMITS])
    reader = ShardedCheckpointer.Config().build(directory=address, read_only=True)
    assert reader.steps() == [2]
    again = commits_lease(open_storage(address))
    assert again.acquire() == 2
    writer = ShardedCheckpointer.Config().build(directory=address, lease=again)
    save(writer, 3, 3)
    writer.close()
    assert reader.steps() == [2, 3]
    again.release()
