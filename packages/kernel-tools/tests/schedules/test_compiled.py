"""A kernel alone: its halves' shapes at real sizes, the Pallas calls in them, and the tiles that a mask leaves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from kanawa.composition.target import parse_target
from kanawa.errors import KernelError
from kanawa.kernels.masks import FULL, sliding_window
from kanawa.plugins import ScheduleRequest
from kanawa.testing.compare import examples_for, operations_with_examples
from kanawa_kernel_tools.examples.attention import TYPICAL
from kanawa_kernel_tools.examples.rms_norm import BASE as NORM
from kanawa_kernel_tools.schedules.compiled import compile_apart, halves, operand_shapes
from kanawa_kernel_tools.schedules.pallas_calls import grid_of, outputs_of, pallas_calls, step_flops, tables_of


@pytest.mark.parametrize("operation", [name for name in operations_with_examples() if name != "quantized_matmul"])
def test_every_operation_has_a_typical_problem_with_both_halves(operation):
    examples = examples_for(operation)
    forward, *backward = halves(examples.reference, examples.typical, differentiated=True)
    assert forward.direction == "forward"
    assert jax.tree.leaves(jax.eval_shape(forward.function, *forward.arguments))
    assert [half.direction for half in backward] == ["backward"]


def test_operands_larger_than_this_machine_have_shapes():
    cache = {"batch": 4096, "kv_length": 131072, "q_length": 1, "mode": "decode", "has_kv_lengths": True}
    shapes = operand_shapes("attention", dataclasses.replace(TYPICAL, **cache))
    assert shapes["k"].shape == (4096, 131072, TYPICAL.num_kv_heads, TYPICAL.head_dim)
    assert shapes["k"].dtype == TYPICAL.dtype


def test_tiles_that_a_mask_leaves():
    # Of 4 x 4 causal tiles ten hold a pair; heads and their order don't count.
    assert TYPICAL.visited_share((32, 4, 4)) == TYPICAL.visited_share((4, 32, 4)) == 10 / 16
    assert TYPICAL.visited_share((32, 8, 4)) == TYPICAL.visited_share((2, 32, 8, 4)) == 20 / 32
    assert TYPICAL.visited_share((32, 8, 8)) == TYPICAL.visited_share((2, 8, 32, 8)) == 36 / 64
    assert dataclasses.replace(TYPICAL, mask=FULL).visited_share((32, 4, 4)) == 1
    window = dataclasses.replace(TYPICAL, mask=sliding_window(1024))
    assert window.visited_share((32, 4, 4)) == 7 / 16
    # A grid that tells too little leaves the pairs themselves.
    assert TYPICAL.visited_share((32,)) == TYPICAL.pairs / 4096**2
    # A norm has neither tiles nor matmuls.
    assert (NORM.visited_share((32, 4, 4)), NORM.matmul_flops) == (1, 0)


def double(x_ref, y_ref, out_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += jnp.dot(x_ref[...], y_ref[...])


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    tiles = {
        "in_specs": [pl.BlockSpec((8, 16), lambda i, k: (i, k)), pl.BlockSpec((16, 32), lambda i, k: (k, 0))],
        "out_specs": pl.BlockSpec((8, 32), lambda i, k: (i, 0)),
    }
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((32, 32), x.dtype), grid=(4, 2), **tiles)(x, y)


def test_pallas_calls_are_named_with_grid_and_flops():
    x, y = jnp.ones((32, 32)), jnp.ones((32, 32))
    traced = jax.jit(lambda x, y: jax.lax.scan(lambda c, _: (jax.jit(product)(c, y), None), x, length=3)[0])
    ((name, eqn),) = pallas_calls(traced.trace(x, y).jaxpr.jaxpr)
    assert name in ("product", "double")
    assert grid_of(eqn) == [4, 2]
    assert step_flops(eqn) == 2 * 8 * 16 * 32
    assert outputs_of(eqn) == 4


def test_tables_of_a_call_are_told_where_the_program_holds_them():
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def double(blocks, counts, x, out):
        out[...] = x[...] * counts[0]

    def function(x, counts):
        blocks = jnp.asarray(np.array([1, 0], np.int32))
        window = pl.BlockSpec((8, 128), lambda n, blocks, counts: (blocks[n], 0))
        grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=2, grid=(2,), in_specs=[window], out_specs=window)
        return pl.pallas_call(double, grid_spec=grid, out_shape=jax.ShapeDtypeStruct((16, 128), x.dtype))(
            blocks, counts, x
        )

    traced = jax.jit(function).trace(jnp.ones((16, 128), jnp.int32), jnp.ones((1,), jnp.int32))
    ((_, eqn),) = pallas_calls(traced.jaxpr.jaxpr)
    assert tables_of(traced.jaxpr, eqn) == [[1, 0], None]


def test_a_fresh_process_tells_what_kept_it_from_compiling(tmp_path):
    request = ScheduleRequest(kernel="attention.any.reference", problem=TYPICAL, target=parse_target("cpu"))
    with pytest.raises(
        KernelError, match=r"attention.any.reference for train .* on cpu: no installed backend compiles"
    ):
        compile_apart(request, tmp_path, {"KANAWA_SKIP_PLUGINS": "kanawa-backends-cpu"})
