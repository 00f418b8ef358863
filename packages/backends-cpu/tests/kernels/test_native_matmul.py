"""Matmuls by native functions: right in every layout, at every size's tails, with every processor's registers."""

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
from kanawa_backends_cpu.kernels.matmul import available
from kanawa_backends_cpu.processor import Processor, processor

native_call = pytest.importorskip("kanawa_backends_cpu.kernels.matmul.native_call")

HERE = pytest.mark.skipif(available.why_no_native() is not None, reason="no native matmuls for this processor")
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
    ours = native_call.call(a, b, transpose_a=transpose_a, transpose_b=transpose_b, dtype=jnp.dtype(result))
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
    """LLVM splits vectors wider than this processor's; without AMX bfloat16 is converted to float32."""
    features = {(16, 4): {"avx512f"}, (8, 2): {"avx2", "fma"}, (4, 4): {"asimd"}}[registers]
    monkeypatch.setattr(native_call, "processor", lambda: Processor("another", frozenset(features)))
    for has in ("has_amx_tiles", "has_bf16_pairs"):
        monkeypatch.setattr(native_call, has, lambda: False)
    for sizes in SIZES:
        assert_right(sizes, transpose, transpose, dtype, result)


@HERE
@pytest.mark.skipif(not processor().has("avx512f", "avx512_bf16"), reason="no AVX-512 for bfloat16 here")
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), list(itertools.product((False, True), repeat=2)))
def test_pairs_in_vectors_where_there_are_no_tiles(monkeypatch, transpose_a, transpose_b, result):
    monkeypatch.setattr(native_call, "has_amx_tiles", lambda: False)
    monkeypatch.setattr(native_call, "has_bf16_pairs", lambda: True)
    for sizes in SIZES:
        assert_right(sizes, transpose_a, transpose_b, "bfloat16", result)


def test_a_processor_without_known_registers_has_no_native_matmuls(monkeypatch):
    available.why_no_native.cache_clear()
    monkeypatch.setattr(available, "why_not", lambda: None)
    monkeypatch.setattr(available, "processor", lambda: Processor("an old one", frozenset({"sse2"})))
    assert available.why_no_native() == "no native matmul was written for an old one"
    available.why_no_native.cache_clear()
    monkeypatch.setattr(available, "why_not", lambda: "llvmlite can't be used here")
    assert available.why_no_native() == "llvmlite can't be used here"
    available.why_no_native.cache_clear()


@HERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transpose", [False, True])
def test_what_is_not_finite_reaches_its_own_rows_and_columns_alone(dtype, transpose):
    a, b = operands((1, 37, 70, 41), False, transpose, dtype)
    for value, row, column in ((np.inf, 3, 5), (np.nan, 36, 40), (-np.inf, 20, 20)):
        a, b = a.at[0, row, 69].set(value), b.at[(0, column, 0) if transpose else (0, 0, column)].set(value)
    ours = np.asarray(native_call.call(a, b, transpose_b=transpose, dtype=jnp.float32))
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
    ours = native_call.call(a[None], b[None], dtype=jnp.bfloat16)[0]
    wide = native_call.call(a[None], b[None], dtype=jnp.float32)[0]
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(wide.astype(jnp.bfloat16), np.float32))
    assert np.isnan(np.asarray(ours, np.float32)[-1]).all()


@HERE
def test_operands_that_lie_otherwise_are_laid_out_first():
    a, b = operands((2, 40, 24, 50), True, False, "float32")
    strided = jax.jit(lambda a, b: native_call.call(a.swapaxes(1, 2)[:, ::2], b[:, :, 5:], dtype=jnp.float32))(a, b)
    np.testing.assert_allclose(strided, exact(a, b, True, False)[:, ::2, 5:], rtol=1e-5, atol=1e-5)


@HERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_at_once_get_the_same_bits_as_one(dtype):
    call = jax.jit(lambda a, b: native_call.call(a, b, transpose_a=True, dtype=jnp.float32))
    each = [operands((1, 50 + 31 * i, 200, 300 - 23 * i), True, False, dtype, seed=i) for i in range(6)]
    alone = [np.asarray(call(*pair)) for pair in each]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, ours in enumerate(pool.map(lambda i: np.asarray(call(*each[i % 6])), range(120))):
            assert np.array_equal(ours, alone[number % 6])


@given(
    sizes=st.tuples(*(st.integers(1, 5000),) * 3),
    batch=st.integers(1, 64),
    unit=st.sampled_from(["", "amx", "pairs"]),
    lanes=st.sampled_from(REGISTERS),
)
def test_blocks_cover_a_result_and_fit_what_is_packed(sizes, batch, unit, lanes):
    variant = native_call.Variant(False, False, bool(unit), False, *lanes, unit == "amx", unit == "pairs")
    rows, columns, depth = native_call.choose_blocks(variant, sizes, batch)
    assert 0 < rows <= variant.max_block[0] and rows % variant.tile[0] == 0
    assert 0 < columns <= variant.max_block[1] and columns % variant.tile[1] == 0
    assert 0 < depth <= variant.depth and depth % variant.depth_unit == 0


CACHED = """
import os, sys
import jax, jax.monitoring, jax.numpy as jnp
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
from kanawa.kernels.matmul import matmul
def loss(w, x):
    return jnp.sum(jnp.tanh(matmul(x, w).astype(jnp.float32)))
step = jax.jit(jax.grad(loss))
w, x = jnp.full((128, 256), 0.01, sys.argv[1]), jnp.ones((2048, 128), sys.argv[1])
assert step.lower(w, x).as_text().count("kanawa_matmul") >= 2
seen.clear()
total = float(step(w, x).astype(jnp.float32).sum())
print(seen.count("/jax/compilation_cache/cache_hits"), seen.count("/jax/compilation_cache/cache_misses"), total)
"""


@HERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_program_with_them_is_cached_and_run_by_another_process(tmp_path, dtype):
    environment = dict(os.environ, JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    environment |= {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment.pop("XLA_FLAGS", None)
    seen = []
    for _ in range(2):
        command = [sys.executable, "-c", CACHED, dtype]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout.split())
    (_, misses, cold), (hits, more_misses, warm) = seen
    assert int(misses) and int(hits) and not int(more_misses)
    assert cold == warm


FORK = """
import os
from kanawa_backends_cpu.kernels.matmul import native_call
from kanawa_backends_cpu.processor import has_amx_tiles
has_amx_tiles()
child = os.fork()
import jax.numpy as jnp, numpy as np
a, b = (jnp.asarray(np.random.default_rng(0).standard_normal((1, 70, 70)), "bfloat16") for _ in range(2))
ours = native_call.call(a, b, dtype=jnp.float32)
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
