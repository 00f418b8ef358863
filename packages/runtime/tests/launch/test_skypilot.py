"""Jobs as SkyPilot tasks: golden files, the schema, and what SkyPilot can't give."""

import pytest
import yaml
from kanawa.errors import KanawaError
from kanawa_runtime.launch.skypilot.launcher import SkyPilotLauncher
from kanawa_runtime.launch.skypilot.task import task

from .checks.skypilot import task_problems
from .jobs import check_golden, job, refusal

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


@pytest.mark.parametrize("variant", VARIANTS)
def test_tasks_are_golden(variant):
    config, fields = VARIANTS[variant]
    adapter, wanted = config.build(), job(**fields)
    adapter.check(wanted)
    text = adapter.render(wanted)["task.yaml"]
    check_golden(f"skypilot-{variant}.yaml", text)
    assert yaml.safe_load(text) == task(wanted, config)
    assert task_problems(task(wanted, config)) == []


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
    assert said in refusal(SkyPilotLauncher.Config(), job(**fields))


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
