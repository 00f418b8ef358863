"""Jobs on a real Slurm of this machine: lost processes, stops, the queue, and that a cancel leaves nothing."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import slurm_cluster
import tiny_lm
from kanawa.errors import KanawaError
from kanawa_runtime.exit_codes import LOST, STOPPED
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.slurm.launcher import SlurmLauncher
from kanawa_runtime.launch.slurm.script import batch_script
from kanawa_runtime.runs.events import read_events, step_records
from nursery import Nursery
from xla_options import xla_flags

from .checks.slurm import script_problems

GOLDEN = pathlib.Path(__file__).parent / "golden"
#: A machine with thirty other processes takes minutes to start one.
SECONDS = 1200
STEPS = 40
TRAIN = ["kanawa", "train", "tiny-lm", "--steps", str(STEPS), "--set", "checkpoints.every_steps=4", "--run"]


@pytest.fixture(scope="module")
def slurm():
    reason = slurm_cluster.missing()
    if reason:
        pytest.skip(reason)
    with slurm_cluster.cluster() as environment, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        patch.setenv("PATH", environment["PATH"])
        # Of this shell, not of the job: a batch job takes what it was submitted from.
        patch.setenv("XLA_FLAGS", xla_flags())
        yield


def launcher(tools=pathlib.Path(sys.executable).parent, **fields):
    setup = [
        f'export PATH="{tools}:{pathlib.Path(sys.executable).parent}:$PATH"',
        f'export PYTHONPATH="{tiny_lm.FOLDER}"',
    ]
    return SlurmLauncher.Config(poll_seconds=0.1, setup=setup, **fields).build()


def submit(run, command, adapter=None, **fields):
    adapter = adapter or launcher(settle_seconds=5)
    given = {"processes_per_host": 2, "grace_seconds": 60, **fields}
    job = Job(name=run.name, command=command, run=str(run), **given)
    adapter.check(job)
    run.mkdir()
    for name, text in adapter.render(job).items():
        (run.parent / name).write_text(text)
    return adapter, adapter.submit(job, run.parent)


def until(condition, adapter, number):
    deadline = time.monotonic() + SECONDS
    while True:
        late, told = time.monotonic() > deadline, adapter.status(number)
        if value := condition():
            return value
        # A job that has ended does nothing any more, and is forgotten after some minutes.
        assert not late and told.exit_code is None, (told, adapter.logs(number))
        time.sleep(0.05)


def tasks(number):
    """Returns the processes of a job's tasks by rank; several of one where it has children."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            variables = dict(p.split("=", 1) for p in (entry / "environ").read_bytes().decode().split("\0") if "=" in p)
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, ValueError, UnicodeDecodeError):
            continue
        if variables.get("SLURM_JOB_ID") == number and "SLURM_PROCID" in variables and words[0]:
            found.setdefault(variables["SLURM_PROCID"], []).append((int(entry.name), words))
    return found


def trainers(number, rank):
    """Returns the processes of a rank that train, the wrapping shells apart."""
    return [pid for pid, words in tasks(number).get(rank, []) if "train" in words and "python" in words[0]]


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


def saved(run):
    return [e["step"] for e in read_events(run / "events.jsonl") if e["event"] == "checkpoint_committed"]


WAIT = "import pathlib, subprocess, sys; subprocess.Popen(['sleep', '1000']); pathlib.Path(sys.argv[1]).touch(); "


def test_cancel_leaves_no_process(slurm, tmp_path):
    run = tmp_path / "waits"
    command = [sys.executable, "-c", WAIT + "import time; time.sleep(1000)", str(run / "there")]
    adapter, number = submit(run, command, is_gang=False)
    until((run / "there").exists, adapter, number)
    # The same job again is the same job.
    assert adapter.submit(Job(name="waits", command=command, run=str(run)), tmp_path) == number
    assert tasks(number)
    adapter.cancel(number)
    assert adapter.status(number).state == "cancelled"
    assert tasks(number) == {}


@pytest.mark.parametrize(
    ("codes", "retries", "ended"),
    [("2 42", 5, 2), ("0 0", 5, 0), ("42 137", 1, 137)],
)
def test_the_job_ends_with_the_gang_s_code(slurm, tmp_path, codes, retries, ended):
    command = ["sh", "-c", f'set -- {codes}; shift "$SLURM_PROCID"; exit "$1"']
    adapter, number = submit(tmp_path / "ends", command, retries=retries, is_gang=False)
    assert adapter.watch(number, lambda line: None) == ended
    said = adapter.logs(number)
    assert said.count("ended with") == (retries + 1 if ended > 126 else 1)
    assert ("no restarts are left of 1" in said) == (ended > 126)


def supervised(number):
    """Returns whether a process of Slurm's still looks after an attempt of the job."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if (entry / "cmdline").read_bytes().startswith(f"slurmstepd: [{number}.".encode()):
                return True
        except OSError:
            continue
    return False


def start_now(number):
    """Slurm lets a requeued job wait for two minutes."""
    update = ["scontrol", "update", f"jobid={number}", "starttime=now"]
    deadline = time.monotonic() + SECONDS
    while supervised(number):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # Slurm counts in seconds: what starts in that in which the last attempt was ended has no right to ("Job credential
    # revoked"), and fails.
    time.sleep(2)
    while subprocess.run(update, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.2)


SILENT = """#!/bin/sh
PATH="${PATH#*:}"
tools=$(dirname "$0")
if mkdir "$tools/$SLURM_RESTART_COUNT.asked"; then
  echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
  exit 1
fi
exec squeue "$@"
"""


def test_stops_that_saved_everything_cost_no_restart(slurm, tmp_path):
    command = ["sh", "-c", 'if [ "$KANAWA_ATTEMPT" -lt 3 ]; then exit 42; fi']
    # Once in each attempt the controller doesn't answer.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "squeue").write_text(SILENT)
    (tools / "squeue").chmod(0o755)
    adapter = launcher(tools, settle_seconds=5)
    _, number = submit(tmp_path / "stops", command, adapter, retries=0, is_gang=False)
    for stops in (1, 2):
        until(lambda: adapter.status(number).stops == stops, adapter, number)  # noqa: B023 - called here
        until(lambda: adapter.status(number).state == "queued", adapter, number)
        start_now(number)
    assert adapter.watch(number, lambda line: None) == 0
    assert adapter.status(number).line() == "done, stops 2, exit code 0"
    assert len(list(tools.glob("*.asked"))) == 2


SAVES = """
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(6)
    (folder / "saved").touch()
    sys.exit(42)
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, stop)
(folder / "there").touch()
time.sleep(1000)
"""


def test_a_cancel_waits_for_a_save_that_takes_longer_than_slurm_would(slurm, tmp_path):
    run = tmp_path / "saves"
    adapter, number = submit(run, [sys.executable, "-c", SAVES, str(run)], is_gang=False)
    until((run / "there").exists, adapter, number)
    adapter.cancel(number)
    assert (run / "saved").exists()
    assert adapter.status(number).state == "cancelled"
    assert tasks(number) == {}


def test_a_job_that_slurm_doesn_t_have(slurm):
    with pytest.raises(KanawaError, match="Slurm has no job 99999 any more, and no accounting that remembers it"):
        launcher().status("99999")
    with pytest.raises(KanawaError, match="'gang' is no job of Slurm: they are numbers"):
        launcher().cancel("gang")


def undisturbed(run, folder):
    """Trains in a gang of two that no launcher knows of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Nursery() as nursery:
        gang = [*TRAIN[1:], str(run), "--coordinator", address, "--processes", "2", "--process-id"]
        ranks = [nursery.start([*gang, str(rank)], said=folder / f"whole-{rank}.log") for rank in range(2)]
        assert [rank.wait(SECONDS) for rank in ranks] == [0, 0], ranks[0].text()


@pytest.mark.nightly
def test_a_killed_rank_and_a_stop_leave_no_trace_in_the_losses(slurm, tmp_path):
    run, whole = tmp_path / "disturbed", tmp_path / "whole"
    adapter, number = submit(run, [*TRAIN, str(run)])
    until(lambda: saved(run), adapter, number)
    for pid in until(lambda: trainers(number, "1"), adapter, number):
        os.kill(pid, signal.SIGKILL)
    # The gang starts again in its allocation. Its code is the killed one's, or that of the one that lost its peer.
    until(lambda: re.search(f"attempt 1 ended with (137|{LOST})", adapter.logs(number)), adapter, number)
    before = len(saved(run))
    until(lambda: len(saved(run)) > before, adapter, number)
    assert adapter.status(number).line() == "running, restarts 1"
    # As at the time limit or for a job with more rights: all save the same step, and the job queues again.
    subprocess.run(["scancel", "--signal=TERM", number], check=True)
    until(lambda: "attempt 2 ended with 42" in adapter.logs(number), adapter, number)
    until(lambda: adapter.status(number).state == "queued", adapter, number)
    assert (adapter.status(number).restarts, adapter.status(number).stops) == (1, 1)
    start_now(number)
    told = []
    assert adapter.watch(number, told.append) == 0
    assert told[-1].startswith(f"{number}: done, restarts 1, stops 1, exit code 0")
    undisturbed(whole, tmp_path)
    assert losses(run) == losses(whole) and len(losses(run)) == STEPS
    attempts = [e["outcome"] for e in read_events(run / "events.jsonl") if e["event"] == "run_ended"]
    assert attempts[-2:] == ["preempted", "done"]


FAILS = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
attempt, rank = os.environ["KANAWA_ATTEMPT"], os.environ["SLURM_PROCID"]
(folder / f"{attempt}-{rank}").write_text(os.environ["SLURMD_NODENAME"])
if attempt == "1":
    time.sleep(1000)
"""


@pytest.fixture
def three_nodes(monkeypatch):
    reason = slurm_cluster.missing()
    if reason:
        pytest.skip(reason)
    with slurm_cluster.cluster(nodes=3) as environment:
        monkeypatch.setenv("SLURM_CONF", environment["SLURM_CONF"])
        monkeypatch.setenv("PATH", environment["PATH"])
        yield


@pytest.mark.nightly
def test_a_spare_takes_the_place_of_a_node_that_fails(three_nodes, tmp_path):
    run = tmp_path / "spares"
    command = [sys.executable, "-c", FAILS, str(run)]
    fields = {"is_gang": False, "hosts_per_slice": 2, "spares": 1, "processes_per_host": 1}
    adapter, number = submit(run, command, **fields)
    until(lambda: len(list(run.glob("1-*"))) == 2, adapter, number)
    # Not the node of the batch script, which would take the job with it.
    lost = (run / "1-1").read_text()
    subprocess.run(["scontrol", "update", f"nodename={lost}", "state=down", "reason=drill"], check=True)
    assert adapter.watch(number, lambda line: None) == 0
    assert adapter.status(number).line() == "done, restarts 1, exit code 0"
    again = {path.read_text() for path in run.glob("2-*")}
    assert len(again) == 2 and lost not in again


# --- without a Slurm --------------------------------------------------------------------------------------------------


def test_the_script_is_golden():
    job = Job(
        name="seven",
        command=["kanawa", "train", "llama2-7b", "--run", "/shared/seven", "--set", "model.name=it's"],
        run="/shared/seven",
        target="cpu-8",
        hosts_per_slice=4,
        spares=1,
        queue="batch",
        priority="100",
        image="registry/image:1",
        environment={"NAME": "a b"},
        resources={"cpu": "16", "memory": "64G"},
    )
    config = SlurmLauncher.Config(time="1-00:00:00", account="ml", exclusive=True, setup=["module load cuda"])
    config.build().check(job)
    golden, text = GOLDEN / "slurm.sbatch", batch_script(job, config)
    if os.environ.get("KANAWA_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "KANAWA_UPDATE_GOLDENS=1 writes it anew"
    assert list(script_problems(text)) == []
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert f"-eq {STOPPED} ]" in text


@pytest.mark.parametrize(
    ("fields", "config", "said"),
    [
        ({"run": "runs/a"}, {}, "give an absolute path on a shared file system with --run"),
        ({"run": "/my runs/a"}, {}, "run '/my runs/a': sbatch reads blanks"),
        ({"spot": True}, {}, "what may be preempted is a partition or a QOS"),
        ({"priority": "high"}, {}, "priority 'high': Slurm takes a number"),
        ({"resources": {"google.com/tpu": "4"}}, {}, "sbatch takes cpu and memory"),
        ({"resources": {"memory": "64Gi"}}, {}, "memory 64Gi: Slurm writes 64G for it"),
        ({}, {"time": "a day"}, "time 'a day' is no time limit of sbatch; expected minutes"),
        ({}, {"options": ["licenses=a"]}, "option 'licenses=a' is none of sbatch; write --name=value"),
    ],
)
def test_what_slurm_can_t_give(fields, config, said):
    with pytest.raises(KanawaError) as error:
        SlurmLauncher.Config(**config).build().check(Job(**{"name": "a", "command": ["b"], "run": "/c", **fields}))
    assert said in str(error.value)


#: In place of Slurm's own: a step runs its task here.
STUBS = {
    "srun": "while [ $1 != bash ]; do shift; done; export SLURM_PROCID=0 SLURM_STEP_NODELIST=here; exec $@",
    "scontrol": "echo here",
}


def batch(tmp_path, command, **config):
    """Returns what the script of a job of one process says, and its exit code, with stubs in place of Slurm."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, body in STUBS.items():
        (tools / name).write_text("#!/bin/sh\n" + body.replace("$1", '"$1"').replace("$@", '"$@"') + "\n")
        (tools / name).chmod(0o755)
    job = Job(name="one", command=command, run=str(tmp_path / "run"), retries=2, is_gang=False)
    text = batch_script(job, SlurmLauncher.Config(**config))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_restarts_in_an_allocation_wait_longer_and_longer(tmp_path):
    began = time.monotonic()
    code, said = batch(tmp_path, ["sh", "-c", "exit 137"], most_backoff_seconds=2)
    assert code == 137 and time.monotonic() - began >= 3
    assert "one: starting again in 1 s, restart 1 of 2" in said
    assert "one: starting again in 2 s, restart 2 of 2" in said
    assert said.count("ended with 137") == 3


def test_a_command_that_is_not_found_is_no_kill(tmp_path):
    code, said = batch(tmp_path, ["no-such-program"])
    assert code == 126
    assert said.count("ended with 126") == 1 and "no such program on" in said


def test_without_slurm_s_tools(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KanawaError, match=r"squeue isn't on PATH: this must be a node of a Slurm cluster"):
        SlurmLauncher.Config().build().submit(Job(name="a", command=["b"], run=str(tmp_path)), tmp_path)
