"""Jobs as SkyPilot tasks: golden files, the schema, and what SkyPilot can't give."""

import copy
import os
import pathlib
import random

import pytest
import yaml
from kanawa.errors import KanawaError
from kanawa.plugins import DeviceSpec
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.skypilot.launcher import SkyPilotLauncher
from kanawa_runtime.launch.skypilot.task import TASK, task
from kanawa_runtime.launch.strict import schema_problems

GOLDEN = pathlib.Path(__file__).parent / "golden"
FIGURES = {
    "memory_bytes": 1,
    "memory_bandwidth": 1.0,
    "link_bandwidth": 1.0,
    "network_bandwidth": 1.0,
    "source": "made up",
}
DEVICES = {
    "v6e": DeviceSpec(name="v6e", platform="tpu", chips_per_host=4, topologies={16: "4x4"}, **FIGURES),
    "h100": DeviceSpec(name="h100", platform="gpu", chips_per_host=8, **FIGURES),
}
VARIANTS = {
    "gpu": (
        SkyPilotLauncher.Config(infra="aws", setup=["pip install kanawa"], mounts={"/runs": "s3://bucket"}),
        {"target": "h100-16", "hosts_per_slice": 2, "spot": True, "run": "/runs/seven"},
    ),
    "tpu": (
        SkyPilotLauncher.Config(infra="gcp/us-east5"),
        {"target": "v6e-16", "hosts_per_slice": 4, "retries": 0, "image": "r/i:1", "resources": {"memory": "64Gi"}},
    ),
}


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    from kanawa.composition import target
    from kanawa.plugins.devices import cpu_spec

    monkeypatch.setattr(target, "device_specs", lambda: {"cpu": cpu_spec(), **DEVICES})


def job(**fields):
    given = {
        "name": "seven",
        "command": ["kanawa", "train", "llama2-7b", "--run", "gs://b/seven"],
        "run": "gs://b/seven",
    }
    return Job(**{**given, **fields})


@pytest.mark.parametrize("variant", VARIANTS)
def test_tasks_are_golden(variant):
    config, fields = VARIANTS[variant]
    adapter, wanted = config.build(), job(**fields)
    adapter.check(wanted)
    golden, text = GOLDEN / f"skypilot-{variant}.yaml", adapter.render(wanted)["task.yaml"]
    if os.environ.get("KANAWA_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "KANAWA_UPDATE_GOLDENS=1 writes it anew"
    assert yaml.safe_load(text) == task(wanted, config)


def test_misspelt_missing_and_mistyped_fields_are_refused():
    rng = random.Random(3)
    taken = []
    for _ in range(200):
        config, fields = VARIANTS[rng.choice(list(VARIANTS))]
        tree = task(job(**fields), config)
        holder = rng.choice([tree, tree["resources"], tree["resources"]["job_recovery"]])
        key = rng.choice([k for k in holder if k not in ("infra", "memory", "image_id", "accelerators", "setup")])
        mistake = rng.choice(["remove", "misspell", "type"])
        value = holder.pop(key)
        if mistake == "misspell":
            holder[key[:-1]] = value
        elif mistake == "type":
            holder[key] = [copy.deepcopy(value)]
        if not schema_problems(tree, TASK):
            taken.append((mistake, key))
    assert {key for _, key in taken} <= {"recover_on_exit_codes", "file_mounts"}
    assert len(taken) <= 10 and {mistake for mistake, _ in taken} <= {"remove"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "v6e-16x2", "slices": 2, "hosts_per_slice": 4}, "a task is one slice here; use jobset or pathways"),
        ({"run": "runs/a"}, "run 'runs/a' would be lost with its machine; give a bucket"),
        ({"priority": "1"}, "priority '1': a task has none; leave --priority out"),
        ({"spares": 1}, "1 spares: it looks for a new machine when one is lost"),
        ({"resources": {"disk": "1"}}, "resources disk: a task takes cpu, and memory in Gi"),
    ],
)
def test_what_skypilot_can_t_give(fields, said):
    with pytest.raises(KanawaError) as error:
        SkyPilotLauncher.Config().build().check(job(**fields))
    assert said in str(error.value)


QUEUE = """\
ID  TASK  NAME   REQUESTED   SUBMITTED   TOT. DURATION  JOB DURATION  #RECOVERIES  STATUS
2   -     seven  1x[H100:8]  1 min ago   1m             1m            1            RECOVERING
1   -     seven  1x[H100:8]  1 hr ago    1h             1h            0            FAILED
"""


def test_states_are_read_from_the_queue(monkeypatch):
    from kanawa_runtime.launch.skypilot import launcher

    monkeypatch.setattr(launcher, "call", lambda command, install: QUEUE)
    adapter = SkyPilotLauncher.Config().build()
    assert adapter.status("seven").state == "restarting"
    with pytest.raises(KanawaError, match="SkyPilot has no job 'eight'; `sky jobs queue` lists them"):
        adapter.status("eight")
