"""Fusions as a compiler for the chip would make them: bytes against counts by hand, and what must not share a pass."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from kanawa_parallel.plan.cost.flops import flops
from kanawa_parallel.plan.cost.traffic import bytes_moved
from kanawa_parallel.plan.read.fusing import LONGEST_ROW, fused
from kanawa_parallel.plan.read.hlo import parse_module
from kanawa_parallel.plan.read.loops import executions

TOKENS, WIDTH, INNER, HEADS = 512, 256, 1024, 4
HALF = 2


def norm(x, g):
    wide = x.astype(jnp.float32)
    mean = lax.reduce_sum(wide * wide, (1,)) / WIDTH
    return (wide * lax.rsqrt(mean + 1e-6)[:, None] * g[None, :]).astype(jnp.bfloat16)


def block(x, g, q, k, v, o, h, gate, up, down):
    """Attention and a gated feed-forward, each behind a norm, without any function of JAX's that is compiled apart."""
    a = norm(x, g)
    heads = (TOKENS, HEADS, WIDTH // HEADS)
    query, key, value = (lax.reshape(a @ w, heads) for w in (q, k, v))
    scores = lax.dot_general(query, key, (((2,), (2,)), ((1,), (1,))), preferred_element_type=jnp.float32) * 0.125
    e = lax.exp(scores - lax.reduce_max(scores, (2,))[..., None])
    p = (e / lax.reduce_sum(e, (2,))[..., None]).astype(jnp.bfloat16)
    mixed = lax.dot_general(p, value, (((2,), (0,)), ((0,), (1,))))
    y = x + lax.reshape(lax.transpose(mixed, (1, 0, 2)), (TOKENS, WIDTH)) @ o
    b = norm(y, h)
    g1 = b @ gate
    return y + (g1 * lax.logistic(g1) * (b @ up)) @ down


def arguments():
    half, row = jnp.bfloat16, jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), half)
    wide = jax.ShapeDtypeStruct((WIDTH, INNER), half)
    narrow = jax.ShapeDtypeStruct((INNER, WIDTH), half)
    return jax.ShapeDtypeStruct((TOKENS, WIDTH), half), row, square, square, square, square, row, wide, wide, narrow


def total(module, count):
    runs = executions(module)
    return sum(runs[name] * count(module, module.computations[name], i)
               for name in runs for i in module.computations[name].instructions)  # fmt: skip


def moved(module):
    inside = {name for c in module.computations.values() for i in c.instructions
              if i.opcode in ("fusion", "reduce", "all-reduce") for name in i.called}  # fmt: skip
    runs = executions(module)
    return sum(runs[name] * bytes_moved(module, module.computations[name], i)
               for name in runs if name not in inside for i in module.computations[name].instructions)  # fmt: skip


def worked(module):
    return total(module, lambda _, computation, instruction: flops(computation, instruction))


def unfused(function, *args):
    return parse_module(jax.jit(function).lower(*args).as_text(dialect="hlo"))


def test_a_blocks_bytes_are_those_counted_by_hand():
    activations, inner = TOKENS * WIDTH * HALF, TOKENS * INNER * HALF
    square, wide, scores = WIDTH * WIDTH * HALF, WIDTH * INNER * HALF, HEADS * TOKENS * TOKENS * HALF
    by_hand = (
        2 * activations  # norm: x read, its result written
        + 3 * (activations + square + activations)  # query, key, value
        + 2 * activations + scores  # scores and softmax in one pass, written once
        + scores + activations + activations  # what they mix
        + activations + square + activations + 2 * activations  # output, residual and norm: two results
        + activations + wide + inner  # gate
        + activations + wide + inner + inner  # up, and the product with the gate
        + inner + wide + activations + activations  # down and residual
    )  # fmt: skip
    raw = unfused(block, *arguments())
    module = fused(raw)
    assert moved(module) == pytest.approx(by_hand, rel=0.03)
    assert moved(raw) > 4 * by_hand
    assert worked(module) == worked(raw) > 0


def test_two_matmuls_share_no_pass_and_each_takes_along_what_follows():
    half = jax.ShapeDtypeStruct((TOKENS, TOKENS), jnp.bfloat16)
    module = fused(unfused(lambda a, b: jnp.negative(lax.exp(a @ b) @ b), half, half))
    bodies = [module.computations[i.called[0]] for i in module.computations[module.entry].instructions if i.called]
    held = [[i.opcode for i in body.instructions if i.opcode != "parameter"] for body in bodies]
    # An exponential costs the same read as its own result would.
    assert held == [["dot"], ["exponential", "dot", "negate"]]


@pytest.mark.parametrize(("length", "passes"), [(LONGEST_ROW, 1), (2 * LONGEST_ROW, 2)])
def test_a_row_too_long_for_the_chip_is_read_again(length, passes):
    x = jax.ShapeDtypeStruct((4, length), jnp.float32)
    module = fused(unfused(lambda x: x / lax.reduce_sum(x * x, (1,))[:, None], x))
    assert moved(module) == pytest.approx((passes + 1) * 4 * length * 4, rel=0.01)


def test_what_is_cheap_is_computed_again_where_it_is_read():
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)

    def masked(x):
        seen = lax.broadcasted_iota(jnp.int32, (512, 512), 0) >= lax.broadcasted_iota(jnp.int32, (512, 512), 1)
        none = jnp.zeros_like(x)
        return lax.select(seen, x, none) @ x, lax.select(seen, x @ x, none)

    whole = 512 * 512 * 4
    # Two matmuls, each with its masking, read what they multiply and write: no mask ever lies in memory.
    assert moved(fused(unfused(masked, x))) == pytest.approx(4 * whole, rel=0.01)
    assert moved(unfused(masked, x)) > 10 * whole


SCATTERED = """HloModule m
add (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main (p: f32[64,8], i: s32[]) -> f32[16,8] {
  p = f32[64,8] parameter(0)
  i = s32[] parameter(1)
  z = s32[] constant(0)
  sum = f32[64,8] all-reduce(p), replica_groups={{0,1,2,3}}, to_apply=add
  ROOT mine = f32[16,8] dynamic-slice(sum, i, z), dynamic_slice_sizes={16,8}
}
"""


def test_a_sum_of_which_each_keeps_a_slice_is_a_reduce_scatter():
    module = fused(parse_module(SCATTERED))
    (sum_,) = [i for i in module.computations["main"].instructions if i.name == "mine"]
    assert (sum_.opcode, sum_.operands, sum_.arrays[0].dims, sum_.root) == ("reduce-scatter", ("p",), (16, 8), True)
    half = SCATTERED.replace("f32[16,8] dynamic-slice", "f32[32,8] dynamic-slice").replace("={16,8}", "={32,8}")
    assert "all-reduce" in {i.opcode for i in fused(parse_module(half)).computations["main"].instructions}


def test_loops_run_as_often_as_before_and_update_their_stacks_in_place():
    x, w = jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((7, 128, 128), jnp.float32)

    def layers(x, w):
        return lax.scan(lambda x, w: (lax.tanh(x @ w), x * 2.0), x, w)

    raw = unfused(layers, x, w)
    module = fused(raw)
    assert worked(module) == worked(raw) == 7 * 2 * 64 * 128 * 128
    activation, weight = 64 * 128 * 4, 128 * 128 * 4
    # A matmul with its tanh; a product; a slice of the stack, which JAX writes in a call of its own; zeros at first.
    assert moved(module) == pytest.approx(7 * (6 * activation + weight) + 7 * activation, rel=0.01)
