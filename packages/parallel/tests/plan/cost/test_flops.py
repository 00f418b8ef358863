"""FLOPs counted in compiled text against counts by hand, and against brute force for padded convolutions."""

import itertools

import pytest
from kanawa_parallel.plan.cost.flops import _pairs, flops
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.read.hlo import Computation, parse_instruction

#: The sizes in make_texts.py, on one of four devices.
LAYERS, ROWS, WIDTH, HIDDEN = 3, 64, 256, 512
MATMUL = 2 * ROWS * WIDTH * HIDDEN
#: Two forward; one recomputed, whose result the backward pass needs; four backward.
MATMULS = 7


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_the_step_does_seven_matmuls_a_layer(modules, platform, torus, island):
    device = {"tpu": torus, "gpu": island}[platform]
    timing = Timing(modules[platform], {"fsdp": 4}, Machine(device, Links.of_devices(device, None, 4)))
    assert timing.total_flops() == MATMULS * MATMUL * LAYERS
    assert sum(item.flops for item in timing.work()) == MATMULS * MATMUL * LAYERS


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(("taps", "low", "high"), [(1, 0, 0), (3, 1, 1), (8, 7, 7), (4, 0, 3)])
@pytest.mark.parametrize(
    ("stride", "lhs_dilate", "rhs_dilate"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 3, 2)]
)
def test_pairs_that_land_inside(size, taps, low, high, stride, lhs_dilate, rhs_dilate):
    reach = (size - 1) * lhs_dilate + 1
    outputs = (reach + low + high - ((taps - 1) * rhs_dilate + 1)) // stride + 1
    if outputs < 1:
        return
    places = ((o * stride + t * rhs_dilate - low) for o, t in itertools.product(range(outputs), range(taps)))
    inside = sum(0 <= place < reach and place % lhs_dilate == 0 for place in places)
    assert _pairs(size, outputs, taps, stride, low, lhs_dilate, rhs_dilate) == inside


def made(*lines):
    instructions = [parse_instruction(f"  {line}") for line in lines]
    return Computation("c", instructions, {i.name: i for i in instructions}), instructions[-1]


def test_a_projection_written_as_a_padded_convolution():
    """[4, 4096, 4096] times [4096, 32, 128], as libtpu writes it: 31 of 32 taps fall outside."""
    scope, conv = made(
        "%a = bf16[4,4096,4096,1]{2,1,0,3} parameter(0)",
        "%b = bf16[4096,32,128,1]{3,2,1,0} parameter(1)",
        "%c = bf16[4,4096,32,128]{3,1,2,0} convolution(%a, %b), window={size=1x32 pad=0_0x31_31 rhs_reversal=0x1}, "
        "dim_labels=0bf1_i1o0->0b1f",
    )
    assert flops(scope, conv) == 2 * 4 * 4096 * 4096 * 32 * 128


def test_library_matmul_by_its_dimension_numbers():
    scope, call = made(
        "%a = bf16[64,256]{1,0} parameter(0)",
        "%b = bf16[256,512]{1,0} parameter(1)",
        '%c = (bf16[64,512]{1,0}, s8[1024]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
    )
    assert flops(scope, call) == 2 * 64 * 512 * 256
