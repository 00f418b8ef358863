"""Shapes in text take the bytes that JAX's own arrays take, and a DeviceSpec's names for their dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa_parallel.plan.read.hlo import HOST, ArrayShape, arrays, bits, device_dtype

DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f4e2m1fn": "float4_e2m1fn",
    "s4": "int4",
    "u4": "uint4",
    "s8": "int8",
    "u8": "uint8",
    "s16": "int16",
    "s32": "int32",
    "u32": "uint32",
    "pred": "bool",
    "c64": "complex64",
}


@pytest.mark.parametrize("written", DTYPES)
def test_an_element_takes_as_many_bits_as_in_jax(written):
    expected = 8 if written == "pred" else jax.dtypes.itemsize_bits(jnp.dtype(DTYPES[written]))
    assert bits(written) == expected


@given(st.lists(st.integers(0, 9), max_size=4), st.sampled_from(["f32", "bf16", "s8", "pred", "s4"]))
def test_bytes_are_the_products(dims, dtype):
    (array,) = arrays(f"{dtype}[{','.join(map(str, dims))}]{{0:T(8,128)}}")
    assert array == ArrayShape(dtype, tuple(dims))
    assert array.size == int(np.prod(dims))
    assert array.bytes == -(-array.size * bits(dtype) // 8)


@pytest.mark.parametrize("written", ["token[]", "opaque[]", "(())", "", "unknown"])
def test_what_holds_nothing_takes_nothing(written):
    assert sum(array.bytes for array in arrays(written)) == 0


def test_leaves_of_nested_tuples_in_order():
    text = "((f32[2]{0}, (s32[], /*index=2*/bf16[3,4]{1,0:T(8,128)(2,1)})), pred[5])"
    assert [(a.dtype, a.dims) for a in arrays(text)] == [("f32", (2,)), ("s32", ()), ("bf16", (3, 4)), ("pred", (5,))]


def test_a_bounded_dimension_counts_in_full():
    assert arrays("f32[<=16,4]{1,0}")[0].dims == (16, 4)


@pytest.mark.parametrize(
    ("written", "named"),
    [("bf16", "bfloat16"), ("f32", "float32"), ("f8e4m3fn", "float8_e4m3fn"), ("s8", "int8"), ("s32", "s32")],
)
def test_names_as_devices_have_them(written, named):
    assert device_dtype(written) == named


def test_dtypes_narrower_than_a_byte_or_with_digits_in_their_tail():
    text = "(f8e4m3b11fnuz[16]{0}, f8e8m0fnu[16], f4e2m1fn[3]{0:E(4)}, u4[16], s2[16], u1[9])"
    assert [a.bytes for a in arrays(text)] == [16, 16, 2, 8, 4, 2]
    assert [device_dtype(a.dtype) for a in arrays(text)[:4]] == [
        "float8_e4m3b11fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4",
    ]  # fmt: skip


def test_a_layout_names_the_memory_that_an_array_is_in():
    text = "(bf16[4,8]{1,0:T(8,128)(2,1)S(5)}, f32[2]{0:T(256)S(1)}, f32[2]{0}, pred[])"
    assert [a.space for a in arrays(text)] == [HOST, 1, 0, 0]
