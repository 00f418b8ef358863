"""The texts that compilers wrote for a small sharded step; `make_texts.py` makes them anew."""

import importlib
from pathlib import Path

import pytest
from kanawa.plugins import DeviceSpec
from kanawa_parallel.plan.read.hlo import parse_module

TEXTS = Path(__file__).with_name("texts")
PLATFORMS = ("tpu", "gpu")


@pytest.fixture(scope="session")
def text():
    """Returns a function from a text's name to the text."""
    return lambda name: (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def modules(text):
    """The compiled step by platform."""
    return {platform: parse_module(text(f"{platform}_program")) for platform in PLATFORMS}


@pytest.fixture(scope="session")
def torus():
    """A chip of a three-dimensional torus, of no vendor: this package knows no backend."""
    return DeviceSpec(
        name="torus",
        platform="tpu",
        peak_flops={"bfloat16": 4e14},
        memory_bytes=96 * 2**30,
        memory_bandwidth=2.8e12,
        link_bandwidth=6e11,
        network_bandwidth=6e9,
        chips_per_host=4,
        domain_chips=4096,
        torus_dimensions=3,
        link_name="ICI",
        network_name="DCN",
        source="made for tests",
    )


@pytest.fixture(scope="session")
def island():
    """A chip of eight in a fast domain, with a network adapter each."""
    return DeviceSpec(
        name="island",
        platform="gpu",
        peak_flops={"bfloat16": 1e15},
        memory_bytes=80 * 2**30,
        memory_bandwidth=3.35e12,
        link_bandwidth=4.5e11,
        network_bandwidth=5e10,
        chips_per_host=8,
        domain_chips=8,
        link_name="NVLink",
        source="made for tests",
    )


@pytest.fixture
def unplaced_job(stranger, monkeypatch, tmp_path):
    """The experiment `plan-job` and its devices, catalogued as a stranger's plugin would be; see `plan_job`."""
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))
    folders = [str(TEXTS.with_name("workloads")), str(TEXTS.parents[1] / "pipeline")]
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
    stranger(
        "job_metadata",
        "",
        plugins=["plan-job = plan_job"],
        experiments=["plan-job = plan_job:job"],
    )
    return importlib.import_module("plan_job")


@pytest.fixture
def job(unplaced_job, tmp_path, monkeypatch):
    """The same where the user has a rule for it: what doesn't fit by it isn't placed."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nplatform = "cpu"\nmesh = {fsdp = -1}\n', encoding="utf-8")
    monkeypatch.setenv("KANAWA_MESH_RULES", str(rules))
    return unplaced_job


@pytest.fixture(scope="session")
def plans():
    """Plans that were made already: compiling takes a second or more."""
    return {}


@pytest.fixture
def planned(job, plans):
    """Returns a function that plans the job on a target, as the verb does."""
    from kanawa_parallel.plan.programs.request import PlanRequest
    from kanawa_parallel.plan.targets.plan import plan_target

    def plan(target, *modifiers, overrides=(), program="train_step"):
        key = (target, modifiers, tuple(overrides), program)
        if key not in plans:
            (composition,) = PlanRequest("plan-job", modifiers, overrides).composed([target])
            plans[key] = composition, plan_target(composition, program).report
        return plans[key]

    return plan
