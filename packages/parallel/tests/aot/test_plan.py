"""`plan` with a real compiler for chips that aren't here: what is counted in its program, and what fits.

Slow, and needs a backend with its compiler: KANAWA_AOT=1 python -m pytest packages/parallel/tests/aot
"""

import os

import jax
import pytest
from kanawa.composition.experiment import compose
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.plugins import host
from kanawa_parallel.plan.targets.plan import plan_target

pytestmark = pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile")
SMALL = (
    *("model.stack.num_layers=3", "model.input_dim=1024", "model.stack.layer.feed_forward.hidden_dim=2816"),
    *("model.stack.layer.attention.num_heads=8", "model.stack.layer.attention.num_kv_heads=8", "batch_size=16"),
)


@pytest.mark.parametrize("selector", ["v5p-8", "h100-8"])
def test_a_llama_step_over_a_pod(selector):
    """FLOPs through loops are the model's own and what is recomputed; arguments are exact; nothing is missing."""
    target = parse_target(selector)
    try:
        offered = [found for _, found in host().collect("kanawa_topology", target=target) if found]
    except TargetError as error:
        pytest.skip(str(error))
    if not offered:
        pytest.skip(f"no installed backend compiles for {selector}")
    composition = compose("llama2-7b", target, ["remat:policy=none"], SMALL)
    with jax.numpy_dtype_promotion("standard"):  # optax relies on it
        report = plan_target(composition).report
    assert report.compiled and report.fits
    assert abs(report.arguments_error) < 0.001
    assert abs(report.temporaries_error) < 0.15
    # Flash attention's backward repeats the scores: one or three matmuls in the four the model counts for it.
    attention = 3 * 3 * 4 * 1024 * 2048.5 * report.tokens_per_step
    repeated = {"v5p-8": 3 / 6, "h100-8": 1 / 6}[selector] * attention
    assert report.flops_per_step == pytest.approx(report.model_flops_per_step + repeated, rel=0.02)
    assert (report.estimated_cycles is not None) == (selector == "v5p-8")
    assert {row.axes for row in report.communication} >= {"fsdp"}
