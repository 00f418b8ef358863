"""Placement is at least as quick as the mesh rules that it took the place of, by quick plans."""

import pytest
from kanawa.composition.experiment import compose
from kanawa.plugins import MeshRule
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.search.evaluate import ROOM

ALL, TURN = {"fsdp": -1}, ("rope-by-matmul", {"optional": True})
OFFLOAD, FOURTHS = {"policy": "offload-qkv-and-output"}, {"accumulate": {"microbatches": 4}}
#: Workload, target, rows, length, and the rule's mesh, policy and other modifiers.
RULES = {
    "tpu.v4.medium": ("llama2-7b", "v4-1024", 1024, 4096, {"data": 32, "fsdp": 16}, {"policy": "save-qkv-and-output"}),
    "tpu.v5e.large": ("llama2-7b", "v5e-64", 128, 4096, ALL, {"policy": "offload-dots"}),
    "tpu.v5e.medium.slice": ("llama2-7b", "v5e-256", 1024, 4096, ALL, {"policy": "offload-dots"}, FOURTHS),
    "tpu.v5e.medium.slices": ("llama2-7b", "v5e-256x4", 2048, 4096, ALL, {"policy": "save-projections"}),
    "tpu.large": ("llama3.1-8b", "v6e-256", 768, 8192, ALL, {"policy": "save-qkv-and-output"}),
    "tpu.v6e.medium.slices": ("llama3.1-8b", "v6e-256x2", 1536, 8192, ALL, OFFLOAD),
    "tpu.v6e.large": ("llama3.1-70b", "v6e-256", 1024, 8192, ALL, OFFLOAD, FOURTHS),
    "tpu.v6e.large.slices": ("llama3.1-70b", "v6e-256x2", 1024, 8192, ALL, {"policy": "offload-qkv-and-input"}),
}
#: The one that is planned each time.
SHORT = "tpu.v5e.medium.slice"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == SHORT else pytest.mark.nightly) for n in RULES])
def test_placement_is_as_quick_as_the_rule_was(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path))
    model, target, rows, length, mesh, policy, *others = RULES[name]
    sets = [f"batch_size={rows}", f"data.sequence_length={length}"]
    modifiers = (TURN, ("remat", policy), *(each for one in others for each in one.items()))
    across = {"data": int(target.partition("x")[2] or 1)} if "x" in target else {}
    rule = MeshRule(name=name, platform="tpu", mesh=mesh, dcn=across, modifiers=modifiers)
    by_rule = quick_report(compose(model, target, [], sets, rule=rule), "train_step")
    chosen = compose(model, target, [], sets)
    placed = quick_report(chosen, "train_step")
    assert chosen.rule.name == "placement", "what `show --why execution.mesh` names"
    assert placed.memory["total"] * ROOM <= placed.memory_limit_bytes
    too_large = by_rule.memory["total"] * ROOM > by_rule.memory_limit_bytes
    figures = f"{total(placed):.4g} s placed, {total(by_rule):.4g} s by the rule{', too large' if too_large else ''}"
    assert too_large or total(placed) <= 1.01 * total(by_rule), figures


def total(report):
    """Returns a step's seconds, also of one that doesn't fit."""
    return sum(report.step_seconds_by.values())
