"""The job, the chips and the mistakes that the tests of all adapters share."""

import copy
import os
import pathlib
import random

import pytest
from kanawa.errors import KanawaError
from kanawa.plugins import DeviceSpec
from kanawa_runtime.launch import Job

GOLDEN = pathlib.Path(__file__).parent / "golden"
_FIGURES = {
    "memory_bytes": 1,
    "memory_bandwidth": 1.0,
    "link_bandwidth": 1.0,
    "network_bandwidth": 1.0,
    "source": "made up",
}
#: Chips of the shapes that clouds sell; the real ones come from the backends, which aren't installed here.
DEVICES = {
    "v5p": DeviceSpec(name="v5p", platform="tpu", chips_per_host=4, topologies={16: "2x2x4"}, **_FIGURES),
    "v6e": DeviceSpec(name="v6e", platform="tpu", chips_per_host=4, topologies={16: "4x4"}, **_FIGURES),
    "h100": DeviceSpec(name="h100", platform="gpu", chips_per_host=8, **_FIGURES),
    "trn2": DeviceSpec(name="trn2", platform="neuron", chips_per_host=16, **_FIGURES),
}


def job(target="cpu", **fields):
    """Returns a job that trains into a bucket."""
    run = fields.get("run", "gs://bucket/seven")
    command = ["kanawa", "train", "llama2-7b", "--run", run, "--on", target, "--set", "model.name=a b"]
    given = {"name": "seven", "command": command, "image": "registry/image:1", "run": run}
    return Job(**{**given, "target": target, **fields})


def served(**fields):
    """Returns a job of three replicas of a server."""
    run = fields.get("run", "gs://bucket/seven")
    target = fields.get("target", "h100-8")
    command = ["kanawa", "serve", run, "--on", target, "--set", "engine.max_sequences=4"]
    given = {"target": target, "command": command, "is_gang": False, "replicas": 3, "grace_seconds": 60}
    return job(**{**given, **fields})


def check_golden(name, text):
    """Compares with a file in git, or writes it."""
    golden = GOLDEN / name
    if os.environ.get("KANAWA_UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text(), "KANAWA_UPDATE_GOLDENS=1 writes it anew"


def refusal(config, wanted):
    """Returns what an adapter says of a job that it can't run."""
    with pytest.raises(KanawaError) as error:
        config.build().check(wanted)
    return str(error.value)


def places(tree, path=()):
    """Yields the path of every node below a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(original: object, rng: random.Random):
    """Returns a tree with one mistake, as a typing error or a careless edit makes it, and what it is."""
    tree = copy.deepcopy(original)
    path = rng.choice([p for p in places(tree) if not set(p) & {"labels", "annotations"}])
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    key, value = path[-1], holder[path[-1]]
    mistakes = ["remove", "type", "none"]
    if isinstance(key, str):
        mistakes += ["misspell", "add"]
    if isinstance(value, int) and not isinstance(value, bool):
        mistakes += ["negative", "off by one"]
    if isinstance(value, str):
        mistakes += ["empty", "blank"]
    if isinstance(value, list) and value:
        mistakes += ["double", "empty list"]
    mistake = rng.choice(mistakes)
    if mistake == "remove":
        del holder[key]
    elif mistake == "misspell":
        holder[key[:-1] + "x" if len(key) > 1 else key + "x"] = holder.pop(key)
    elif mistake == "add":
        holder[key + "Extra"] = value
    else:
        holder[key] = {
            "type": {"a": 1} if not isinstance(value, dict) else "text",
            "none": None,
            "negative": -1,
            "off by one": value + 1 if isinstance(value, int) else None,
            "empty": "",
            "blank": f"{value} {value}",
            "double": [*value, value[0]] if isinstance(value, list) and value else None,
            "empty list": [],
        }[mistake]
    return tree, f"{mistake} at {'.'.join(map(str, path))}"
