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
from kanawa_runtime.train.events import read_events, step_records

GOLDEN = pathlib.Path(__file__).parent / "golden"
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray isn't installed; `nox -s ray` has it")
SECONDS = 400
STEPS = 40


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    os.environ.pop("XLA_FLAGS", None)
    os.environ["PYTHONPATH"] = tiny_lm.FOLDER
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    import ray

    ray.shutdown()
    cluster.shutdown()


def submit(address, folder, name, command, **fields):
    adapter = RayLauncher.Config(address=address, poll_seconds=0.2, settle_seconds=5.0, backoff_seconds=0.1).build()
    given = {"hosts_per_slice": 2, "target": "cpu-2", "grace_seconds": 60}
    job = Job(name=name, command=command, run=str(folder / name), **{**given, **fields})
    adapter.check(job)
    (folder / "ray.json").write_text(adapter.render(job)["ray.json"])
    return adapter, adapter.submit(job, folder)


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


@needs_ray
@pytest.mark.timeout(900)
def test_a_gang_of_two_nodes_survives_a_killed_process(address, tmp_path):
    run, whole = tmp_path / "killed", tmp_path / "whole"
    adapter, name = submit(address, tmp_path, "killed", train(run))
    # The same job again is the same job.
    assert adapter.submit(Job(name="killed", command=train(run), run=str(run)), tmp_path) == name
    until(lambda: saved(run), adapter, name)
    os.kill(pids(adapter, name)[1], signal.SIGKILL)
    told = []
    assert adapter.watch(name, told.append) == 0
    assert told[-1] == "killed: done, restarts 1, exit code 0"
    assert "done: 40 steps" in adapter.logs(name)
    started = [event for event in read_events(run / "events.jsonl") if event["event"] == "run_started"]
    assert len(started) == 2
    adapter, name = submit(address, tmp_path, "whole", train(whole))
    assert adapter.watch(name, told.append) == 0
    assert losses(run) == losses(whole) and len(losses(run)) == STEPS


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


def job(**fields):
    given = {
        "name": "seven",
        "command": ["kanawa", "train", "llama2-7b", "--run", "/shared/seven"],
        "run": "/shared/seven",
    }
    return Job(**{**given, **fields})


def test_what_is_rendered_is_golden():
    wanted = job(
        target="cpu-8", hosts_per_slice=2, resources={"cpu": "8", "memory": "64Gi", "special": "1"}, image="r/i:1"
    )
    adapter = RayLauncher.Config().build()
    adapter.check(wanted)
    golden, text = GOLDEN / "ray.json", adapter.render(wanted)["ray.json"]
    if os.environ.get("KANAWA_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "KANAWA_UPDATE_GOLDENS=1 writes it anew"
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
    with pytest.raises(KanawaError) as error:
        RayLauncher.Config().build().check(job(**fields))
    assert said in str(error.value)


def test_without_ray_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KanawaError, match=r"Ray is missing: pip install 'kanawa-runtime\[ray\]', the version of the"):
        RayLauncher.Config().build().submit(job(), tmp_path)
