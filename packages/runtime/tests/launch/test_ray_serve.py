"""What Ray Serve is given for replicas of a server, and what it can't give; integration runs them on a real Ray."""

import json
import sys

import pytest
from kanawa.errors import KanawaError
from kanawa_runtime.launch.ray.serve_launcher import RayServeLauncher

from .jobs import check_golden, refusal, served


def replicas(**fields):
    return served(**{"target": "cpu", "image": "", "replicas": 2, "run": "/shared/seven", **fields})


def test_what_is_rendered_is_golden():
    adapter = RayServeLauncher.Config().build()
    wanted = replicas(environment={"A": "b"}, resources={"cpu": "2"}, image="r/i:1")
    adapter.check(wanted)
    text = adapter.render(wanted)["serve.json"]
    check_golden("ray-serve.json", text)
    assert json.loads(text)["deployment"]["num_replicas"] == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"run": "runs/a"}, "give an absolute path on a shared disk, or a bucket"),
        ({"queue": "team"}, "queue 'team': Ray has none"),
        ({"spares": 1}, "one more replica is one; raise --replicas"),
    ],
)
def test_what_ray_serve_can_t_give(fields, said):
    assert said in refusal(RayServeLauncher.Config(), replicas(**fields))


def test_without_ray_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KanawaError, match=r"Ray is missing: pip install 'kanawa-runtime\[ray\]'"):
        RayServeLauncher.Config().build().submit(replicas(), tmp_path)
