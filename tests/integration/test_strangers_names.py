"""A stranger's plugin that takes names of ours: what doesn't ask for these names works as before."""

import kanawa as kn
import pytest
from fake_distributions import fake_distributions
from kanawa.errors import PluginError

STRANGER = """
import kanawa as kn

class Taken(kn.Modifier):
    def __call__(self, cfg):
        raise RuntimeError("not this one")

class Cache: ...
"""
ENTRIES = {
    "kanawa.modifiers": [
        f"{name} = fake_taker:Taken"
        for name in ("remat", "mesh", "accumulate", "offload-optimizer", "lora-pool", "grpo")
    ],
    "kanawa.caches": ["paged = fake_taker:Cache", "quantised = fake_taker:Cache"],
    "kanawa.models": ["llama-tiny = fake_taker:Cache"],
    "kanawa.remat": ["full = fake_taker:Cache", "save-qkv-and-output = fake_taker:Cache"],
    "kanawa.templates": ["pretraining = fake_taker:Cache"],
    "kanawa.model_stores": ["run = fake_taker:Cache"],
    "kanawa.api": ["train = fake_taker:Cache", "open = fake_taker:Cache"],
    "kanawa.hf_families": ["llama = fake_taker:Cache"],
}


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    install = fake_distributions(tmp_path, monkeypatch)
    next(install)("fake-taker", ENTRIES, {"fake_taker": STRANGER})
    yield
    next(install, None)


def test_mesh_rules_still_apply(stranger):
    composition = kn.compose("quickstart", "h100-8")
    assert composition.config.execution.mesh is not None
    origins = composition.config.origin_history("execution.mesh")
    assert f"{composition.rule.name} of kanawa-backends-gpu" in origins[-1].detail
    why = kn.show("quickstart", on="h100-8").why("execution.mesh")[-1]
    assert why.set_by.startswith(f"mesh rule mesh, {composition.rule.name} of kanawa-backends-gpu ")


def test_a_plans_own_changes_are_spelled_out(stranger):
    from kanawa_parallel.plan.programs.request import PlanRequest

    words = PlanRequest("quickstart", ("seed:x=1",)).words("cpu-8", ["remat:policy=full", "offload-optimizer"])
    assert [word for word in words if ":" in word or "-" in word][3:] == [
        *("seed:x=1", "--modify", "kanawa-parallel:remat:policy=full"),
        *("--modify", "kanawa-parallel:offload-optimizer"),
    ]
    (composition,) = PlanRequest("quickstart").composed(["h100-8"], ["remat:policy=full"])
    assert composition.changes == ("kanawa-parallel:remat:policy=full",)


def test_the_servers_pages_are_ours(stranger):
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.paged_model import paged_model

    model = kn.component("models", "kanawa-layers:llama-tiny")().build()
    paged = paged_model(model, EngineConfig(max_sequences=4, num_pages=24), 56, "float32")
    assert {type(node).__module__ for _, node in paged.model.config.walk() if "Paged" in type(node).__qualname__} == {
        "kanawa_layers.attention.paged_cache"
    }


def test_functions_of_kn_and_families_of_others_checkpoints_are_ours(stranger):
    from kanawa.api.provided import provided
    from kanawa_layers.convert.families import family

    assert provided("open").__module__.startswith("kanawa_runtime")
    assert family("llama").__class__.__module__ != "fake_taker"
    assert kn.compose("llama2-7b", "h100-8").config.model is not None


def test_asking_for_the_bare_name_is_an_error_that_says_how_to_choose(stranger):
    with pytest.raises(
        PluginError, match="kanawa-parallel:remat .* fake-taker:remat .*KANAWA_SKIP_PLUGINS=fake-taker:remat"
    ):
        kn.compose("quickstart", "h100-8", modifiers=["remat"])
    kn.compose("quickstart", "h100-8", modifiers=["kanawa-parallel:remat"])
