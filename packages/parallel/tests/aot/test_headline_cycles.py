"""The cycles of the headline workloads stay below what was reached, a layer's as their stack's loop is compiled.

Slow, and needs libtpu: KANAWA_AOT=1 python -m pytest packages/parallel/tests/aot -k headline
"""

import os

import jax
import pytest
from kanawa.composition.experiment import compose
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.plugins import host
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import parse_module

pytestmark = pytest.mark.skipif(os.environ.get("KANAWA_AOT") != "1", reason="slow: set KANAWA_AOT=1 to compile")
# No other loop of the program runs three times.
LAYERS = 3
#: Workload, its layers, and 0.85 of the cycles of MaxText's step at its best policy (benchmarks/results/maxtext.json).
FLOORS = [("llama2-7b", "v5p-512", 32, 3.43e9), ("llama2-70b", "v5p-1024", 80, 1.61e10)]


@pytest.mark.parametrize(("experiment", "selector", "layers", "most"), FLOORS, ids=[case[0] for case in FLOORS])
def test_cycles_of_a_headline_step_over_a_pod(experiment, selector, layers, most):
    """The mesh rule, policy and compiler options are those shipped; only the number of layers is another."""
    target = parse_target(selector)
    try:
        offered = [devices for _, devices in host().collect("kanawa_topology", target=target) if devices]
    except TargetError as error:
        pytest.skip(str(error))
    if not offered:
        pytest.skip(f"no installed backend compiles for {selector}")
    composition = compose(experiment, target, [], [f"model.stack.num_layers={LAYERS}"])
    with jax.numpy_dtype_promotion("standard"):  # optax relies on it
        compilation = compile_program(composition, "train_step")
    machine = Machine(target.device, Links.of_devices(target.device, compilation.devices, target.jax_devices))
    work = Timing(parse_module(compilation.text), compilation.mesh, machine).work()
    layer = sum(item.cycles for item in work if item.runs == LAYERS) / LAYERS
    assert layer * layers + sum(item.cycles for item in work if item.runs != LAYERS) <= most
