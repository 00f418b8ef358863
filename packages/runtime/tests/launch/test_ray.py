"""Jobs on a real Ray cluster of two nodes on this machine (`nox -s ray`), and what is told without one."""

import importlib.util
import json
import os
import pathlib
import signal
import sys
import time

import pytest
import tiny_lm
from kanawa.errors import KanawaError
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.ray.launcher import RayLauncher
from kanawa_runtime.runs.events import read_events, step_records
from xla_options import xla_flags

from .jobs import check_golden, job, refusal

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray isn't installed; `nox -s ray` has it")
#: Ray's own, of what it imports.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "ResourceWarning")]
SECONDS = 400
STEPS = 40


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ["XLA_FLAGS"] = xla_flags()
    os.environ["PYTHONPATH"] = tiny_lm.FOLDER
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    import ray

    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def address(cluster):
    return cluster.address


def submit(address, folder, name, command, **fields):
    adapter = RayLauncher.Config(address=address, poll_seconds=0.2, settle_seconds=5.0, backoff_seconds=0.1).build()
    given = {"hosts_per_slice": 2, "target": "cpu-2", "grace_seconds": 60}
    wanted = Job(name=name, command=command, run=str(folder / name), **{**given, **fields})
    adapter.check(wanted)
    (folder / "ray.json").write_text(adapter.render(wanted)["ray.json"])
    return adapter, adapter.submit(wanted, folder)


def pids(adapter, name):
    import ray

    return ray.get(adapter._gang(name).pids.remote())


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, adapter, name):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, (adapter.status(name), adapter.logs(name))
        time.sleep(0.05)


def saved(run):
    return [e["step"] for e in read_events(run / "events.jsonl") if e["event"] == "checkpoint_committed"]


def losses(run):
    return {step: record["loss"] for step, record in step_records(read_events(run / "events.jsonl")).items()}


def train(run):
    options = ["--steps", str(STEPS), "--set", "checkpoints.every_steps=4"]
    return ["kanawa", "train", "tiny-lm", "--run", str(run), *options]


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """The losses of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    adapter, name = submit(cluster.address, folder, "whole", train(folder / "whole"))
    assert adapter.watch(name, lambda line: None) == 0
    assert adapter.status(name).line() == "done, exit code 0"
    return losses(folder / "whole")


def saves_after(run, what, adapter, name):
    """Does something to a gang and waits until it saves again."""
    before = saved(run)
    what()
    until(lambda: len(saved(run)) > len(before), adapter, name)


@needs_ray
@pytest.mark.timeout(900)
def test_a_killed_process_and_a_stop_leave_no_trace_in_the_losses(address, whole, tmp_path):
    run = tmp_path / "struck"
    adapter, name = submit(address, tmp_path, "struck", train(run))
    # The same job again is the same job.
    assert adapter.submit(Job(name="struck", command=train(run), run=str(run)), tmp_path) == name
    until(lambda: saved(run), adapter, name)
    saves_after(run, lambda: os.kill(pids(adapter, name)[1], signal.SIGKILL), adapter, name)
    # As a notice to one host that it is reclaimed: all save the same step and start again, which is no failure.
    saves_after(run, lambda: os.kill(pids(adapter, name)[0], signal.SIGTERM), adapter, name)
    told = []
    assert adapter.watch(name, told.append) == 0
    assert told[-1] == "struck: done, restarts 1, stops 1, exit code 0"
    assert "done: 40 steps" in adapter.logs(name)
    ends = [e.get("outcome") for e in read_events(run / "events.jsonl") if e["event"] in ("run_started", "run_ended")]
    assert ends.count(None) == 3 and ends[-1] == "done" and "preempted" in ends
    assert losses(run) == whole and len(whole) == STEPS


def in_gang(adapter, name, do):
    """Returns what a function of the gang's own actor returns."""
    import ray

    return ray.get(adapter._gang(name).__ray_call__.remote(do))


def nodes_of(adapter, name):
    """Returns the nodes on which a gang's processes run."""

    def ask_all(gang):
        import ray

        def ask(member):
            return ray.get_runtime_context().get_node_id()

        return ray.get([member.__ray_call__.remote(ask) for member in gang._members])

    return in_gang(adapter, name, ask_all)


@needs_ray
@pytest.mark.timeout(900)
def test_a_lost_node_is_replaced_by_an_idle_one(cluster, whole, tmp_path):
    run = tmp_path / "node"
    cluster.add_node(num_cpus=1)
    adapter, name = submit(cluster.address, tmp_path, "node", train(run))
    until(lambda: saved(run), adapter, name)
    used = nodes_of(adapter, name)
    lost = next(node for node in cluster.worker_nodes if node.node_id in used)
    saves_after(run, lambda: cluster.remove_node(lost, allow_graceful=False), adapter, name)
    assert adapter.watch(name, lambda line: None) == 0
    assert adapter.status(name).restarts >= 1
    assert losses(run) == whole


@needs_ray
@pytest.mark.timeout(900)
def test_the_actor_that_restarts_the_others_is_started_again_itself(address, whole, tmp_path):
    run = tmp_path / "actor"
    adapter, name = submit(address, tmp_path, "actor", train(run))
    until(lambda: saved(run), adapter, name)
    before = pids(adapter, name)
    keeper = in_gang(adapter, name, lambda gang: os.getpid())
    saves_after(run, lambda: os.kill(keeper, signal.SIGKILL), adapter, name)
    assert not any(map(alive, before))
    assert adapter.watch(name, lambda line: None) == 0
    assert adapter.status(name).restarts >= 1
    assert losses(run) == whole
    # One that has ended stays so.
    keeper = in_gang(adapter, name, lambda gang: os.getpid())
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(keeper), adapter, name)
    until(lambda: adapter.status(name).state != "restarting", adapter, name)
    assert adapter.status(name).state == "done" and adapter.status(name).exit_code == 0


STOPS = "import os, sys; sys.exit(42 if int(os.environ['KANAWA_ATTEMPT']) < 4 else 0)"


@needs_ray
@pytest.mark.timeout(600)
def test_stops_that_saved_everything_cost_no_restart(address, tmp_path):
    adapter, name = submit(address, tmp_path, "stops", [sys.executable, "-c", STOPS], retries=0)
    assert adapter.watch(name, lambda line: None) == 0
    assert adapter.status(name).line() == "done, stops 3, exit code 0"


WAIT = "import subprocess, sys, pathlib, time; subprocess.Popen(['sleep', '1000']); pathlib.Path(sys.argv[1] + "
WAIT += "sys.argv[sys.argv.index('--process-id') + 1]).touch(); time.sleep(1000)"


@needs_ray
@pytest.mark.timeout(600)
def test_cancel_leaves_no_process(address, tmp_path):
    command = [sys.executable, "-c", WAIT, str(tmp_path / "there-")]
    adapter, name = submit(address, tmp_path, "waits", command)
    until(lambda: len(list(tmp_path.glob("there-*"))) == 2, adapter, name)
    running = pids(adapter, name)
    assert len(running) == 2 and all(map(alive, running))
    adapter.cancel(name)
    assert not any(map(alive, running))
    assert adapter.status(name).state == "cancelled"


@needs_ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("code", "restarts"), [(2, 0), (137, 1)])
def test_it_ends_with_the_gang_s_code(address, tmp_path, code, restarts):
    command = [sys.executable, "-c", f"import sys; sys.exit({code})"]
    adapter, name = submit(address, tmp_path, f"ends-{code}", command, retries=1)
    assert adapter.watch(name, lambda line: None) == code
    assert adapter.status(name).restarts == restarts


@needs_ray
def test_a_job_that_isn_t_there(address):
    with pytest.raises(KanawaError, match="this Ray cluster has no job 'nobody', and had none"):
        RayLauncher.Config(address=address).build().status("nobody")


# --- without Ray ------------------------------------------------------------------------------------------------------


def gang(**fields):
    return job(**{"image": "", "run": "/shared/seven", **fields})


def test_what_is_rendered_is_golden():
    resources = {"cpu": "8", "memory": "64Gi", "special": "1"}
    wanted = gang(target="cpu-8", hosts_per_slice=2, resources=resources, image="r/i:1")
    adapter = RayLauncher.Config().build()
    adapter.check(wanted)
    text = adapter.render(wanted)["ray.json"]
    check_golden("ray.json", text)
    assert json.loads(text)["bundles"] == [{"CPU": 8.0, "memory": 64.0 * 2**30, "special": 1.0}] * 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"queue": "team"}, "queue 'team': Ray has none"),
        ({"spot": True}, "which nodes there are is the cluster's own configuration"),
        ({"spares": 2}, "2 spares: every idle node of the cluster is one"),
        ({"run": "runs/a"}, "give an absolute path on a shared disk, or a bucket"),
        ({"resources": {"cpu": "many"}}, "resource cpu=many: Ray takes numbers"),
    ],
)
def test_what_ray_can_t_give(fields, said):
    assert said in refusal(RayLauncher.Config(), gang(**fields))


def test_without_ray_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KanawaError, match=r"Ray is missing: pip install 'kanawa-runtime\[ray\]', the version of the"):
        RayLauncher.Config().build().submit(gang(), tmp_path)
