"""FLOPs of what JAX itself writes, against closed forms: any contraction, any convolution, its gradients."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_parallel.plan.cost.flops import flops, numbers, operand_array
from kanawa_parallel.plan.read.hlo import Computation, parse_instruction, parse_module

LETTERS = "abcdef"


def counted(function, *shapes):
    """Returns the FLOPs of a function's program as JAX hands it to the compiler: nothing fused, nothing left out."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*arguments).compiler_ir("hlo").as_hlo_text()
    module = parse_module(text)
    return sum(flops(scope, i) for scope in module.computations.values() for i in scope.instructions)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_contraction_costs_two_for_each_point_of_its_iteration_space(data):
    """Any einsum of two operands: batch, contracted and free letters, in any order; sizes over one."""
    sizes = {letter: data.draw(st.integers(2, 5), label=letter) for letter in LETTERS}
    left = data.draw(st.lists(st.sampled_from(LETTERS), min_size=2, max_size=4, unique=True))
    right = data.draw(st.lists(st.sampled_from(LETTERS), min_size=2, max_size=4, unique=True))
    shared = [letter for letter in left if letter in right]
    if not shared:
        return
    contracted = data.draw(st.sets(st.sampled_from(shared), min_size=1))
    out = [letter for letter in dict.fromkeys(left + right) if letter not in contracted]
    text = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    points = math.prod(sizes[letter] for letter in {*left, *right})
    shapes = [tuple(sizes[letter] for letter in operand) for operand in (left, right)]
    assert counted(lambda a, b: jnp.einsum(text, a, b), *shapes) == 2 * points


def taps(size, kernel, stride, low, high, dilation):
    """Returns (outputs, output-tap pairs that read an element that is there), counted one by one."""
    reach = (kernel - 1) * dilation + 1
    outputs = (size + low + high - reach) // stride + 1
    places = [o * stride + t * dilation - low for o in range(outputs) for t in range(kernel)]
    return outputs, sum(0 <= place < size for place in places)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 2)])
def test_an_images_convolution_counts_the_pairs_that_land_inside(stride, dilation, low, high):
    rows, height, width, channels, features, kernel = 2, 9, 7, 3, 5, 3

    def function(x, k):
        return jax.lax.conv_general_dilated(
            x, k, (stride, stride), [(low, high), (low, high)], rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    down, across = (taps(size, kernel, stride, low, high, dilation)[1] for size in (height, width))
    expected = 2 * rows * down * across * channels * features
    assert counted(function, (rows, height, width, channels), (kernel, kernel, channels, features)) == expected


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_grouped_convolution_reads_its_own_channels_only(groups):
    channels, features = 8, 12

    def function(x, k):
        return jax.lax.conv_general_dilated(
            x, k, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
        )

    got = counted(function, (3, 10, channels), (4, channels // groups, features))
    assert got == 2 * 3 * (7 * 4) * (channels // groups) * features


def test_a_matmuls_gradients_cost_twice_the_matmul():
    def loss(a, b):
        return jnp.sum(jnp.tanh(a @ b))

    assert counted(jax.grad(loss, argnums=(0, 1)), (6, 7), (7, 5)) == 3 * 2 * 6 * 7 * 5


def test_elementwise_work_and_reductions_are_left_out():
    assert counted(lambda a: jnp.sum(jnp.exp(a) * a, axis=0), (8, 8)) == 0


def scope_of(*lines):
    instructions = [parse_instruction(f"  {line}") for line in lines]
    return Computation("c", instructions, {i.name: i for i in instructions}), instructions[-1]


def test_a_kernels_stated_cost_wins_over_its_name():
    scope, call = scope_of(
        "%a = bf16[64,256]{1,0} parameter(0)",
        '%g = bf16[64,512]{1,0} custom-call(%a, %a), custom_call_target="__cublas$gemm", '
        'backend_config={"cost_estimate":{"transcendentals":"0","flops":"1234","bytes_accessed":"9"}}',
    )
    assert flops(scope, call) == 1234


def test_a_library_matmul_without_numbers_contracts_its_last_dimension():
    scope, call = scope_of(
        "%a = bf16[64,256]{1,0} parameter(0)",
        '%g = bf16[64,512]{1,0} custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"',
    )
    assert flops(scope, call) == 2 * 64 * 512 * 256


@pytest.mark.parametrize("target", ["Sharding", "TopK", "__cudnn$convForward"])
def test_other_custom_calls_cost_nothing_here(target):
    scope, call = scope_of(
        "%a = f32[8,8]{1,0} parameter(0)", f'%g = f32[8,8] custom-call(%a), custom_call_target="{target}"'
    )
    assert flops(scope, call) == 0


def test_an_operands_shape_is_its_makers_or_what_stands_beside_it():
    scope, dot = scope_of(
        "%a = f32[2,3]{1,0} parameter(0)",
        "%d = f32[2,4]{1,0} dot(f32[2,3]{1,0} %lost, f32[3,4]{1,0} %b), lhs_contracting_dims={1}",
    )
    assert operand_array(scope, dot, 0).dims == (2, 3)
    assert operand_array(scope, dot, 1).dims == (3, 4)
    assert operand_array(scope, dot, 2) is None
    assert flops(scope, dot) == 2 * 2 * 4 * 3


def test_integers_of_an_attribute():
    assert numbers("{1,0}") == [1, 0]
    assert numbers(None) == numbers("{}") == []
