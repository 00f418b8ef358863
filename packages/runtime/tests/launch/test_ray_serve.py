"""What Ray Serve is given for replicas of a server, and what it can't give; integration runs them on a real Ray."""

import json
import os
import pathlib
import sys

import pytest
from kanawa.errors import KanawaError
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.ray.serve_launcher import RayServeLauncher

GOLDEN = pathlib.Path(__file__).parent / "golden"


def job(**fields):
    given = {"name": "served", "command": ["kanawa", "serve", "/shared/seven", "--set", "engine.max_sequences=4"]}
    return Job(**{**given, "run": "/shared/seven", "is_gang": False, "replicas": 2, **fields})


def test_what_is_rendered_is_golden():
    adapter = RayServeLauncher.Config().build()
    wanted = job(environment={"A": "b"}, resources={"cpu": "2"}, image="r/i:1")
    adapter.check(wanted)
    golden, text = GOLDEN / "ray-serve.json", adapter.render(wanted)["serve.json"]
    if os.environ.get("KANAWA_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "KANAWA_UPDATE_GOLDENS=1 writes it anew"
    facts = json.loads(text)
    assert (facts["overrides"], facts["deployment"]["num_replicas"]) == (["engine.max_sequences=4"], 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"run": "runs/a"}, "give an absolute path on a shared disk, or a bucket"),
        ({"queue": "team"}, "queue 'team': Ray has none"),
        ({"spares": 1}, "one more replica is one; raise --replicas"),
    ],
)
def test_what_ray_serve_can_t_give(fields, said):
    with pytest.raises(KanawaError) as error:
        RayServeLauncher.Config().build().check(job(**fields))
    assert said in str(error.value)


def test_without_ray_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KanawaError, match=r"Ray is missing: pip install 'kanawa-runtime\[ray\]'"):
        RayServeLauncher.Config().build().submit(job(), tmp_path)
