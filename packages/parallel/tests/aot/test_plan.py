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
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts, recorded_cycles
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.targets.plan import plan_target

pytestmark = pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile")
SMALL = (
    *("model.stack.num_layers=3", "model.input_dim=1024", "model.stack.layer.feed_forward.hidden_dim=2816"),
    *("model.stack.layer.attention.num_heads=8", "model.stack.layer.attention.num_kv_heads=8", "batch_size=16"),
)


def compiled_for(selector):
    """Returns the target, or skips where no installed backend compiles for it."""
    target = parse_target(selector)
    try:
        offered = [found for _, found in host().collect("kanawa_topology", target=target) if found]
    except TargetError as error:
        pytest.skip(str(error))
    return target if offered else pytest.skip(f"no installed backend compiles for {selector}")


@pytest.mark.parametrize("selector", ["v5p-8", "h100-8"])
def test_a_llama_step_over_a_pod(selector):
    """FLOPs through loops are the model's own and what is recomputed; arguments are exact; nothing is missing."""
    target = compiled_for(selector)
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


@pytest.mark.parametrize("mesh", ['{"fsdp":8}', '{"fsdp":2,"expert":4}'])
def test_experts_flops_and_the_rows_exchanged_are_the_formulas(mesh):
    """Forward, again where recomputed, and two gradients; of room for more than an even load only that load."""
    target = compiled_for("v5p-16")
    width, hidden, layers, rows, length, top_k = 1024, 1536, 3, 32, 512, 2
    sizes = [f"model.stack.num_layers={layers}", f"model.input_dim={width}", f"batch_size={rows}"]
    sizes += [f"model.stack.layer.feed_forward.hidden_dim={hidden}", f"data.sequence_length={length}"]
    sizes += [f"model.stack.layer.attention.num_{kind}heads=8" for kind in ("", "kv_")]
    composition = compose("mixtral-8x7b", target, [f"mesh:axes={mesh}", "remat:policy=full"], sizes)
    with jax.numpy_dtype_promotion("standard"):
        compilation = compile_program(composition, "train_step")
    costs = KernelCosts.of_choices(compilation.kernels, recorded_cycles(compilation.kernels, target.device))
    links = Links.of_devices(target.device, compilation.devices, target.jax_devices)
    timing = Timing(parse_module(compilation.text), compilation.mesh, Machine(target.device, links, costs))
    a_device = rows * length * top_k / 8
    found = sum(work.flops for work in timing.work() if "experts" in work.path and "grouped_matmul" in work.path)
    assert found == pytest.approx(a_device * layers * 4 * 3 * 2 * width * hidden, rel=0.03)
    sent = sum(item.bytes for item in timing.sent(timing.step()) if item.kind == "ragged-all-to-all")
    # There and back in both passes and where they are recomputed; of four shards' rows three leave.
    assert sent == pytest.approx(6 * layers * a_device * width * 2 * 3 / 4 if "expert" in mesh else 0, rel=0.03)
