"""Products by native functions: right for every way operands lie, every size's tails, every processor's registers."""

import concurrent.futures
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.arrays import onednn
from kanawa.arrays import products as all_products
from kanawa.arrays.native import available

binding = pytest.importorskip("llvmlite.binding")
products = pytest.importorskip("kanawa.arrays.native.products")

HERE = pytest.mark.skipif(products.registers() is None, reason="no native products for this processor")
#: Of AVX-512, AVX2 and NEON: floats of a vector, and vectors of a tile's row.
REGISTERS = [(16, 4), (8, 2), (4, 4)]
DTYPES = [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")]
#: Batch, rows, contracted, columns: one of each, tails of tiles and of parts of K, and more than a block of each.
SIZES = [(1, 1, 1, 1), (2, 7, 5, 3), (3, 64, 130, 65), (1, 261, 33, 330), (1, 30, 1030, 34), (2, 96, 64, 128)]


def operands(sizes, transpose_a, transpose_b, dtype, seed=0):
    batch, m, k, n = sizes
    rng = np.random.default_rng(seed)
    shapes = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    return tuple(jnp.asarray(rng.standard_normal((batch, *shape)), dtype) for shape in shapes)


def exact(a, b, transpose_a, transpose_b):
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    return (a.swapaxes(-1, -2) if transpose_a else a) @ (b.swapaxes(-1, -2) if transpose_b else b)


def assert_right(sizes, transpose_a, transpose_b, dtype, result):
    a, b = operands(sizes, transpose_a, transpose_b, dtype)
    ours = products.call(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=jnp.dtype(result))
    assert ours.dtype == result
    wanted = exact(a, b, transpose_a, transpose_b)
    assert ours.shape == wanted.shape
    # Half a bfloat16's last place, beside what sums of that many round.
    relative, absolute = (2.0**-8, 1e-4) if result == "bfloat16" else (1e-5, 2e-6 * sizes[2] ** 0.5)
    np.testing.assert_allclose(np.asarray(ours, np.float64), wanted, rtol=relative, atol=absolute)


@HERE
@pytest.mark.parametrize(("dtype", "result"), DTYPES)
@pytest.mark.parametrize(("transpose_a", "transpose_b"), list(itertools.product((False, True), repeat=2)))
def test_every_way_operands_lie(transpose_a, transpose_b, dtype, result):
    for sizes in SIZES:
        assert_right(sizes, transpose_a, transpose_b, dtype, result)


@HERE
@pytest.mark.parametrize("registers", REGISTERS)
@pytest.mark.parametrize(
    ("transpose", "dtype", "result"), [(False, "bfloat16", "bfloat16"), (True, "float32", "float32")]
)
def test_registers_of_other_processors(monkeypatch, registers, transpose, dtype, result):
    """LLVM makes what this processor has of any vector; without AMX bfloat16 is widened."""
    monkeypatch.setattr(products, "registers", lambda: registers)
    monkeypatch.setattr(products, "has_amx", lambda: False)
    for sizes in SIZES:
        assert_right(sizes, transpose, transpose, dtype, result)


def test_a_processor_without_what_it_takes_has_xlas_products(monkeypatch):
    features = binding.get_host_cpu_features()
    # Once for the process, and by what the processor really has.
    available.why_not()
    for cached in (products.registers, products.has_amx, all_products.has_native):
        cached.cache_clear()
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {**features, "avx512f": False, "amx-bf16": False})
    assert not products.has_amx()
    assert products.registers() in {(8, 2), (4, 4), None}
    for cached in (products.registers, products.has_amx):
        cached.cache_clear()
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {"sse2": True})
    assert products.registers() is None
    assert not products.has_amx()
    assert not all_products.has_native()
    for cached in (products.registers, products.has_amx, all_products.has_native):
        cached.cache_clear()


@HERE
def test_a_system_that_refuses_tiles_has_them_not(monkeypatch):
    class Library:
        def __init__(self, name):
            assert name is None

        def syscall(self, *asked):
            assert asked == (158, 0x1023, 18)
            return -1

    products.has_amx.cache_clear()
    monkeypatch.setattr(products.ctypes, "CDLL", Library)
    assert not products.has_amx()
    products.has_amx.cache_clear()


@HERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transpose", [False, True])
def test_what_is_not_finite_reaches_its_own_rows_and_columns_alone(dtype, transpose):
    a, b = operands((1, 37, 70, 41), False, transpose, dtype)
    for value, row, column in ((np.inf, 3, 5), (np.nan, 36, 40), (-np.inf, 20, 20)):
        a, b = a.at[0, row, 69].set(value), b.at[(0, column, 0) if transpose else (0, 0, column)].set(value)
    ours = np.asarray(products.call(a, b, transpose_b=transpose, dtype=jnp.float32))
    with np.errstate(invalid="ignore"):
        wanted = exact(a, b, False, transpose)
    assert np.isfinite(ours).sum() == 34 * 38
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(ours), np.isposinf(wanted))


@HERE
def test_a_bfloat16_result_is_rounded_to_the_nearest_even_and_nan_stays_nan():
    numbers = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1.5, 3e38, -0.0, np.inf, np.nan], np.float32)
    a = jnp.stack([jnp.asarray(numbers, jnp.bfloat16), jnp.full(8, 2.0**-9, jnp.bfloat16)], 1)
    b = jnp.asarray([[1.0, 1.0, 1.0], [0.0, 2.0, 1.0]], jnp.bfloat16)
    ours = products.call(a[None], b[None], dtype=jnp.bfloat16)[0]
    wide = products.call(a[None], b[None], dtype=jnp.float32)[0]
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(wide.astype(jnp.bfloat16), np.float32))
    assert np.isnan(np.asarray(ours, np.float32)[-1]).all()


@HERE
def test_operands_that_lie_otherwise_are_laid_out_first():
    a, b = operands((2, 40, 24, 50), True, False, "float32")
    turned = jax.jit(lambda a, b: products.call(a.swapaxes(1, 2)[:, ::2], b[:, :, 5:], dtype=jnp.float32))(a, b)
    np.testing.assert_allclose(turned, exact(a, b, True, False)[:, ::2, 5:], rtol=1e-5, atol=1e-5)


@HERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_at_once_get_the_same_bits_as_one(dtype):
    call = jax.jit(lambda a, b: products.call(a, b, transpose_a=True, dtype=jnp.float32))
    each = [operands((1, 50 + 31 * i, 200, 300 - 23 * i), True, False, dtype, seed=i) for i in range(6)]
    alone = [np.asarray(call(*pair)) for pair in each]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, ours in enumerate(pool.map(lambda i: np.asarray(call(*each[i % 6])), range(120))):
            assert np.array_equal(ours, alone[number % 6])


@given(
    sizes=st.tuples(*(st.integers(1, 5000),) * 3),
    batch=st.integers(1, 64),
    amx=st.booleans(),
    lanes=st.sampled_from(REGISTERS),
)
def test_blocks_cover_a_result_and_fit_what_is_packed(sizes, batch, amx, lanes):
    product = products.Product(False, False, amx, False, *lanes, amx)
    rows, columns, depth = products.blocks(product, sizes, batch)
    assert 0 < rows <= product.most[0] and rows % product.tile[0] == 0
    assert 0 < columns <= product.most[1] and columns % product.tile[1] == 0
    assert 0 < depth <= product.depth and depth % product.depth_unit == 0


FORK = """
import os
from kanawa.arrays.native import products
products.has_amx(), products.registers()
child = os.fork()
import jax.numpy as jnp, numpy as np
a, b = (jnp.asarray(np.random.default_rng(0).standard_normal((1, 70, 70)), "bfloat16") for _ in range(2))
ours = products.call(a, b, dtype=jnp.float32)
right = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@HERE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_fork_computes_as_its_parent():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_llvmlite_missing_or_broken_leaves_products_to_onednn_and_xla(monkeypatch):
    all_products.has_native.cache_clear()
    monkeypatch.setattr(available, "why_not", lambda: "llvmlite can't be used here")
    assert not all_products.has_native()
    assert all_products.available() == onednn.available()
    assert all_products.kept() == (not onednn.available())
    all_products.has_native.cache_clear()
