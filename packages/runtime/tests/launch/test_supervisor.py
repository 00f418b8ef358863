"""The supervisor with processes of a few lines: restarts, signals, and that nothing is left."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kanawa.errors import KanawaError
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.local.launcher import LocalLauncher
from kanawa_runtime.launch.local.state import folder_of, held, is_supervised, read_state
from kanawa_runtime.launch.local.supervisor import Supervisor
from kanawa_runtime.launch.restarts import Restarts

#: The real supervisor imports no JAX; this process has it, and its children are replaced before they run any of it.
pytestmark = pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")

#: Each attempt of a process takes its next code; "hang" never ends by itself, and "kill" comes once those hang.
RANK = """
import os, pathlib, subprocess, sys, time
plan, index = sys.argv[1].split(";"), int((sys.argv + ["--process-id", "0"])[sys.argv.index("--process-id") + 1]) \
    if "--process-id" in sys.argv else 0
codes = [plan[i].split(",") for i in range(len(plan))]
codes = [of[min(int(os.environ["KANAWA_ATTEMPT"]), len(of)) - 1] for of in codes]
code, folder = codes[index], pathlib.Path(sys.argv[2])
print("process", index, "says", code, flush=True)
if code == "hang":
    child = subprocess.Popen(["sleep", "1000"])
    (folder / f"part-{index}").write_text(str(child.pid))
    (folder / f"part-{index}").rename(folder / f"child-{index}")
    time.sleep(1000)
if code == "kill":
    while len(list(folder.glob("child-*"))) < codes.count("hang"):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
sys.exit(int(code))
"""


def job(tmp_path, plan, **fields):
    command = [sys.executable, "-c", RANK, plan, str(tmp_path)]
    count = plan.count(";") + 1
    return Job(name="gang", command=command, run=str(tmp_path), processes_per_host=count, **{"retries": 5, **fields})


def supervise(tmp_path, plan, settle_seconds=60.0, **fields):
    told = []
    folder = folder_of(tmp_path)
    folder.mkdir(exist_ok=True)
    wanted = job(tmp_path, plan, **fields)
    code = Supervisor(wanted, folder, told.append, settle_seconds=settle_seconds, backoff_seconds=0.01).run()
    return code, told, read_state(folder)


def alive(pid):
    """Returns whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_done(tmp_path):
    code, told, state = supervise(tmp_path, "0;0")
    assert (code, told, state["state"], state["restarts"]) == (0, [], "done", 0)
    assert (tmp_path / "launch/attempt-1/rank-1.log").read_text() == "process 1 says 0\n"


def test_all_start_again_when_one_is_killed(tmp_path):
    code, told, state = supervise(tmp_path, "42,0;kill,0")
    assert (code, state["state"], state["restarts"]) == (0, "done", 1)
    assert told == [
        "process 1 of 2 failed first, with exit code 137 (SIGKILL): it wrote last: process 1 says kill\n"
        f"its log is {tmp_path}/launch/attempt-1/rank-1.log",
        "process 0 ended with exit code 42, process 1 ended with exit code 137 (SIGKILL): "
        "starting all of them again in 0 s, restart 1 of 5",
    ]
    assert [attempt["exit_codes"] for attempt in state["attempts"]] == [[42, 137], [0, 0]]


def test_one_that_hangs_when_another_is_lost_is_killed_with_its_children(tmp_path):
    code, told, _ = supervise(tmp_path, "hang,0;kill,0", settle_seconds=0.5)
    assert code == 0
    assert told[0].startswith("process 1 of 2 failed first, with exit code 137 (SIGKILL)")
    assert told[1] == "processes 0 haven't ended in time: they are killed"
    assert not alive(int((tmp_path / "child-0").read_text()))


def test_what_is_permanent_is_not_tried_again(tmp_path):
    code, told, state = supervise(tmp_path, "42;2")
    assert (code, state["state"]) == (2, "failed")
    assert told[0].startswith("process 1 of 2 failed first, with exit code 2: it wrote last: process 1 says 2\n")
    assert told[1].endswith("2 is permanent, the same command would fail the same way")
    assert "process 1 says 2; logs in" in LocalLauncher.Config().build().status(str(tmp_path)).detail


def test_restarts_are_bounded(tmp_path):
    code, told, state = supervise(tmp_path, "kill", retries=2)
    assert (code, state["restarts"], len(state["attempts"])) == (137, 2, 3)
    assert told[-1] == "process 0 ended with exit code 137 (SIGKILL): no restarts are left of 2"


def test_stops_that_saved_everything_cost_no_restart(tmp_path):
    code, told, state = supervise(tmp_path, "42,42,42,42,0;42,42,200,42,0", retries=1)
    assert (code, state["restarts"], state["stops"], len(state["attempts"])) == (0, 1, 3, 5)
    assert told[0] == "processes 0, 1 ended with exit code 42: starting all of them again in 0 s, stop 1, saved"
    again = "starting all of them again in 0 s, restart 1 of 1"
    assert told[2] == f"process 0 ended with exit code 42, process 1 ended with exit code 200: {again}"
    assert told[3].endswith("stop 3, saved")
    line = LocalLauncher.Config().build().status(str(tmp_path)).line()
    assert line.startswith("done, restarts 1, stops 3, exit code 0")


def test_fifty_preemptions_leave_all_restarts_and_a_crash_loop_uses_them_up():
    restarts = Restarts(2, backoff_seconds=1.0, most_backoff_seconds=60.0)
    assert all(restarts.after([42, 42], 3600.0) == 1.0 for _ in range(50))
    assert (restarts.lost, restarts.stops) == (0, 50)
    # Stops within moments of each other wait longer and longer, as crashes do.
    assert [restarts.after([42], 1.0) for _ in range(4)] == [2.0, 4.0, 8.0, 16.0]
    assert [restarts.after([137, 42], 1.0) for _ in range(3)] == [32.0, 60.0, None]
    assert restarts.after([42, 2], 1.0) is None and restarts.after([0, 0], 1.0) is None


def launch(tmp_path, plan, **fields):
    """Submits a job in the background once it writes."""
    launcher = LocalLauncher.Config(poll_seconds=0.02, settle_seconds=0.5, backoff_seconds=0.01).build()
    name = launcher.submit(job(tmp_path, plan, **fields), tmp_path)
    while not (list(tmp_path.glob("child-*")) and read_state(folder_of(tmp_path)).get("pids")):
        time.sleep(0.02)
    return launcher, name


def pids(tmp_path):
    return [*read_state(folder_of(tmp_path))["pids"], *(int(path.read_text()) for path in tmp_path.glob("child-*"))]


def test_in_the_background_and_cancelled(tmp_path):
    launcher, name = launch(tmp_path, "hang", grace_seconds=60)
    assert launcher.status(name).state == "running"
    assert "process 0 says hang" in launcher.logs(name)
    with pytest.raises(KanawaError, match=r"is being run by another `kanawa launch local`; watch it with"):
        launcher.submit(job(tmp_path, "0"), tmp_path)
    running = pids(tmp_path)
    assert all(map(alive, running))
    launcher.cancel(name)
    assert not any(map(alive, running))
    status = launcher.status(name)
    assert (status.state, status.exit_code) == ("cancelled", 143)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of a killed process")
def test_a_killed_supervisor_leaves_no_process_behind(tmp_path):
    launcher, name = launch(tmp_path, "hang;hang")
    facts = read_state(folder_of(tmp_path))
    os.kill(facts["supervisor"], signal.SIGKILL)
    deadline = time.monotonic() + 120
    # Its processes die with its main thread, its lock is let go with the last of its threads.
    while (any(map(alive, facts["pids"])) or is_supervised(folder_of(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, facts["pids"]))
    assert launcher.status(name).line().startswith("failed, its supervisor was killed, or its disk took no last word")
    # What they had started themselves is nobody's any more.
    for path in tmp_path.glob("child-*"):
        os.kill(int(path.read_text()), signal.SIGKILL)


def test_a_job_that_isn_t_there(tmp_path):
    with pytest.raises(KanawaError, match=r"there is no job in .*; give the run directory"):
        LocalLauncher.Config().build().status(str(tmp_path))


def test_it_never_imports_jax(tmp_path):
    check = (
        "import sys, kanawa_runtime.launch.local.__main__, kanawa_runtime.launch.local.launcher\n"
        "from kanawa_runtime.launch.from_arguments import job_from\n"
        "from kanawa_runtime.launch.job import Job, problems_of_any\n"
        "assert not [*problems_of_any(Job(name='a', command=['b'], target='cpu-2'))]\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_lock_is_let_go(tmp_path):
    with held(tmp_path), pytest.raises(KanawaError, match="is being run by another"), held(tmp_path):
        pass
    with held(tmp_path):
        pass
    assert json.loads(LocalLauncher.Config().build().render(job(tmp_path, "0"))["job.json"])["name"] == "gang"


@pytest.fixture
def hangs_up():
    """Under nohup the signal is ignored, and so it is by whatever runs there."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_goes_away_asks_the_gang_to_stop(tmp_path, hangs_up):
    folder = folder_of(tmp_path)
    folder.mkdir()

    def gone(output):
        os.kill(os.getpid(), signal.SIGHUP)
        message = "Input/output error"
        raise OSError(message)

    supervisor = Supervisor(job(tmp_path, "hang", grace_seconds=60), folder, lambda line: None, gone)
    assert supervisor.run() == 128 + signal.SIGTERM
    assert read_state(folder)["state"] == "cancelled"
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_disk_that_takes_no_state_ends_no_gang(tmp_path):
    told = []
    folder = folder_of(tmp_path)
    folder.mkdir()
    (folder / "state.json.part").mkdir()
    assert Supervisor(job(tmp_path, "0"), folder, told.append).run() == 0
    assert any("the job's state can't be written, the gang keeps running" in line for line in told)


def test_a_full_disk_ends_no_job_and_the_end_is_known(tmp_path, monkeypatch):
    """After the first attempt no folder and no file can be made; what lies there can be written over."""
    told, shown = [], []
    folder = folder_of(tmp_path)
    folder.mkdir()

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    def tell(line):
        told.append(line)
        monkeypatch.setattr(Path, "mkdir", full)
        monkeypatch.setattr(Path, "write_text", full)

    lost = "print('kanawa: error: the disk is full'); raise SystemExit(200)"
    wanted = Job(name="full", command=[sys.executable, "-c", lost], run=str(tmp_path), retries=3)
    assert Supervisor(wanted, folder, tell, shown.append, backoff_seconds=0.01).run() == 200
    assert any("no logs are kept, the gang keeps running: [Errno 28]" in line for line in told)
    assert told[-1] == "process 0 ended with exit code 200: no restarts are left of 3"
    assert b"".join(shown).count(b"the disk is full") == 4
    status = LocalLauncher.Config().build().status(str(tmp_path))
    assert (status.state, status.restarts, status.exit_code) == ("failed", 3, 200)


def test_a_program_that_is_not_there_is_not_tried_again(tmp_path):
    told = []
    folder = folder_of(tmp_path)
    folder.mkdir()
    missing = Job(name="missing", command=["no-such-program"], run=str(tmp_path), retries=3)
    assert Supervisor(missing, folder, told.append).run() == 126
    assert told[0] == "no-such-program can't be started: No such file or directory"


def test_a_process_takes_no_module_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    folder = folder_of(tmp_path)
    folder.mkdir()
    asked = Job(name="help", command=["kanawa", "--version"], run=str(tmp_path))
    assert Supervisor(asked, folder, lambda line: None).run() == 0
    assert not (tmp_path / "ran").exists()


FIRST_WORDS = """
import sys, time
if sys.argv[sys.argv.index("--process-id") + 1] == "1":
    print("kanawa: error: row 7 of the data is no JSON")
    sys.exit(1)
time.sleep(0.5)
print("another process of this run was lost")
sys.exit(200)
"""


def test_the_one_that_failed_is_named_before_the_others_say_that_they_lost_it(tmp_path):
    said = []
    folder = folder_of(tmp_path)
    folder.mkdir()
    gang = Job(name="gang", command=[sys.executable, "-c", FIRST_WORDS], run=str(tmp_path), processes_per_host=2)
    assert Supervisor(gang, folder, said.append, lambda output: said.append(output.decode())).run() == 1
    assert said[0].startswith("process 1 of 2 failed first, with exit code 1: row 7 of the data is no JSON\nits log is")
    assert said[1] == "another process of this run was lost\n"


LOST_ITS_DATA = """
import sys, time
if sys.argv[sys.argv.index("--process-id") + 1] == "1":
    print("kanawa: error: the next batch can't be read")
    sys.exit(200)
time.sleep(0.5)
print("kanawa: another process of this run was lost (Connection closed by peer): this one ends")
sys.exit(200)
"""


def test_one_that_lost_its_storage_is_told_from_those_that_lost_it(tmp_path):
    """All of them end with 200: the one at fault is known by its words."""
    said = []
    folder = folder_of(tmp_path)
    folder.mkdir()
    gang = Job(
        name="g", command=[sys.executable, "-c", LOST_ITS_DATA], run=str(tmp_path), processes_per_host=3, retries=0
    )
    assert Supervisor(gang, folder, said.append, lambda output: said.append(output.decode())).run() == 200
    assert said[0].startswith("process 1 of 3 failed first, with exit code 200: the next batch can't be read\n")
    launcher = LocalLauncher.Config().build()
    assert launcher.status(str(tmp_path)).detail.startswith("process 1 failed first: the next batch can't be read; ")
    log = folder / "attempt-1" / "rank-1.log"
    assert launcher.logs(str(tmp_path)) == f"process 1 failed first; its log is {log}\n{log.read_text()}"


def test_the_reason_of_one_process_is_in_its_status(tmp_path):
    alone = [sys.executable, "-c", "print('kanawa: error: the disk is full'); raise SystemExit(200)"]
    folder = folder_of(tmp_path)
    folder.mkdir()
    assert (
        Supervisor(Job(name="g", command=alone, run=str(tmp_path), retries=0), folder, lambda line: None).run() == 200
    )
    assert LocalLauncher.Config().build().status(str(tmp_path)).detail.startswith("the disk is full; logs in ")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("start", ["run", "submit"])
def test_a_disk_that_takes_no_job_is_worth_another_start(tmp_path, monkeypatch, number, start):
    wanted = Job(name="full", command=["true"], run=str(tmp_path / "run"), retries=0)

    def refused(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", refused)
    launcher = LocalLauncher.Config().build()
    with pytest.raises(KanawaError, match="can't be written.*nothing was started, and nothing is lost") as raised:
        launcher.run(wanted, tmp_path, print) if start == "run" else launcher.submit(wanted, tmp_path)
    assert raised.value.exit_code == 200
