"""The interpreter catches what the hardware can't do: one broken kernel a rule, and what it computes where none is."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

nki = pytest.importorskip("nki")
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 256)).astype(np.float32)


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def full(shape, value=1.0, dtype=nl.float32):
    tile = sbuf(shape, dtype)
    nisa.memset(dst=tile, value=value)
    return tile


def loaded(x):
    tile = sbuf(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def stored(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def tile_matmul(left, right, dst=None, **options):
    dst = psum((left.shape[1], right.shape[1])) if dst is None else dst
    nisa.nc_matmul(dst=dst, stationary=left, moving=right, **options)
    return dst


def psum_from_outside():
    outside = psum((128, 128))
    nl.fori_loop(0, 1, lambda i: tile_matmul(full((128, 128)), full((128, 128)), outside) and None)


def fill_sbuf():
    return [sbuf((128, 16 * 1024)) for _ in range(4)]


def fill_psum():
    return [psum((128, 8)) for _ in range(9)]


def copy_from_psum():
    nisa.dma_copy(dst=sbuf((128, 128)), src=tile_matmul(full((128, 128)), full((128, 128))))


def add_in_psum():
    tile = tile_matmul(full((128, 64)), full((128, 64)))
    nisa.tensor_tensor(dst=sbuf((64, 64)), data1=tile, data2=tile, op=nl.add)


def transpose_in_sbuf():
    nisa.nc_transpose(dst=sbuf((64, 128)), data=full((128, 64)))


def vector_of_bf16():
    nisa.tensor_scalar(dst=sbuf((128, 8)), data=full((128, 8)), op0=nl.add, operand0=full((128, 1), 1.0, nl.bfloat16))


BROKEN = {
    "129 partitions": lambda: sbuf((129, 4)),
    "has partitions and a free axis": lambda: sbuf((128,)),
    "a PSUM tile of 4096 bytes a partition; a bank has 2048": lambda: psum((128, 1024)),
    "SBUF is full: 262144 bytes of a partition are alive, there are 196608": fill_sbuf,
    "PSUM is full: 9 tiles are alive, there are 8 banks": fill_psum,
    "reads what was never written": lambda: nisa.tensor_copy(dst=sbuf((4, 4)), src=sbuf((4, 4))),
    "nc_matmul stationary lies in psum": lambda: tile_matmul(psum((128, 8)), full((128, 8))),
    "nc_matmul dst lies in sbuf; it must be in PSUM": lambda: tile_matmul(full((8, 8)), full((8, 8)), sbuf((8, 8))),
    "nc_matmul dst is bfloat16": lambda: tile_matmul(full((8, 8)), full((8, 8)), psum((8, 8), nl.bfloat16)),
    "nc_matmul stationary has 129 columns; 128 at most": lambda: tile_matmul(
        full((8, 129)), full((8, 8)), psum((8, 8))
    ),
    "nc_matmul moving has 513 columns; 512 at most": lambda: tile_matmul(full((8, 8)), full((8, 513)), psum((8, 8))),
    "nc_matmul contracts 8 with 16 partitions": lambda: tile_matmul(full((8, 8)), full((16, 8))),
    "float32 goes with float32": lambda: tile_matmul(full((8, 8)), full((8, 8), 1.0, nl.bfloat16)),
    "the product is (8, 8)": lambda: tile_matmul(full((8, 8)), full((8, 8)), psum((8, 9))),
    "allocated outside of the device loop": psum_from_outside,
    "dma_copy src lies in PSUM: copy it to SBUF first": copy_from_psum,
    "tensor_tensor: both inputs lie in PSUM": add_in_psum,
    "nc_transpose reads SBUF and writes PSUM": transpose_in_sbuf,
    "nc_transpose of (128, 129); 128 by 128 at most": lambda: nisa.nc_transpose(
        dst=psum((128, 128)), data=full((128, 129))
    ),
    "nc_transpose of float32 to bfloat16": lambda: nisa.nc_transpose(dst=psum((8, 8), nl.bfloat16), data=full((8, 8))),
    "it must be float32": vector_of_bf16,
    "memset of float32 with 1": lambda: full((8, 8), 1),
    "[0:9] of axis 1 of shape (8, 8)": lambda: full((8, 8))[:, 0:9],
    "a partition is taken by a slice": lambda: full((8, 8))[0, :],
    "begins at partition 5; engines begin at 0, 32, 64 or 96": lambda: nisa.tensor_copy(
        dst=sbuf((2, 8)), src=full((8, 8))[5:7, :]
    ),
    "partition step 16 of a tile with 8 elements": lambda: full((8, 8)).ap(pattern=[[16, 4], [1, 8]]),
    "along (0,) of (8, 8): the last axes, never 0": lambda: nisa.tensor_reduce(
        dst=sbuf((8, 1)), op=nl.add, data=full((8, 8)), axis=(0,)
    ),
    "predicate is float32; uint8, 16 or 32": lambda: nisa.tensor_copy_predicated(
        dst=full((8, 4)), src=0.0, predicate=full((8, 4))
    ),
    "tensor_copy_predicated of 0 to float32": lambda: nisa.tensor_copy_predicated(
        dst=full((8, 4)), src=0, predicate=full((8, 4), 1, nl.uint8)
    ),
    "as many partitions and elements a partition": lambda: nisa.tensor_copy(dst=sbuf((8, 4)), src=full((8, 8))),
    "activation bias 1.0: one a partition": lambda: nisa.activation(
        dst=sbuf((8, 8)), op=nl.exp, data=full((8, 8)), bias=1.0
    ),
    "activation with add, which is no activation function": lambda: nisa.activation(
        dst=sbuf((8, 8)), op=nl.add, data=full((8, 8))
    ),
    "a loop's body returned something": lambda: nl.fori_loop(0, 2, lambda i: 1),
    "scalar_offset 3: a register or a [1, 1] tile": lambda: full((8, 8)).ap([[8, 8], [1, 8]], scalar_offset=3),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_caught(rule):
    with pytest.raises(nki.RuleBrokenError) as caught:
        nki.simulate(lambda: BROKEN[rule]())()
    assert rule in str(caught.value)


def test_inputs_are_not_written():
    with pytest.raises(nki.RuleBrokenError, match="writes to an input"):
        nki.simulate(lambda x: nisa.dma_copy(dst=x, src=loaded(x)))(X)


def test_outputs_are_written_whole_and_in_shared_hbm():
    def half(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[:, 0:128], src=x[:, 0:128])
        return out

    with pytest.raises(nki.RuleBrokenError, match="never written"):
        nki.simulate(half)(X)
    with pytest.raises(nki.RuleBrokenError, match="an output lies in sbuf"):
        nki.simulate(loaded)(X)


def test_access_outside_of_a_tensor_is_an_error_or_skipped():
    def rows(x, at, mode):
        places = loaded(at)
        tile = full((2, 256), 7.0)
        nisa.dma_copy(dst=tile, src=x.ap([[256, 2], [1, 256]], vector_offset=places, indirect_dim=0), oob_mode=mode)
        return stored(tile)

    at = np.array([[3], [128]], np.uint32)
    with pytest.raises(nki.RuleBrokenError, match="access outside of the tensor"):
        nki.simulate(rows)(X, at, nisa.oob_mode.error)
    picked = nki.simulate(rows)(X, at, nisa.oob_mode.skip)
    assert np.array_equal(picked, np.stack([X[3], np.full(256, 7.0, np.float32)]))


def test_memory_is_free_again_when_nothing_holds_it():
    def many():
        for _ in range(20):
            full((128, 16 * 1024))
        return stored(full((8, 8)))

    launched = nki.simulate(many)
    launched()
    assert launched.machine.sbuf_peak <= 2 * 16 * 1024 * 4


def test_a_loop_that_carries_something_shows():
    def last_one(numbers):
        tile = full((1, 1))

        def body(i):
            nisa.dma_copy(dst=tile, src=numbers.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=0))

        nl.fori_loop(0, 4, body)
        return stored(tile)

    numbers = np.arange(4, dtype=np.float32)[:, None]
    assert nki.simulate(last_one)(numbers) == 3
    assert nki.simulate(last_one, backwards=True)(numbers) == 0

    def shuffled():
        tile = full((1, 1))
        for i in nl.affine_range(5):
            nisa.memset(dst=tile, value=float(i))
        return stored(tile)

    assert nki.simulate(shuffled)() != 4


def test_programs_share_outputs():
    def one_row_each(x):
        out = nl.ndarray((2, 256), dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.program_id(0)
        nisa.dma_copy(dst=out[row : row + 1, :], src=loaded(x[row : row + 1, :]))
        return out

    assert np.array_equal(nki.simulate(nki.jit(one_row_each)[2])(X), X[:2])
    with pytest.raises(nki.RuleBrokenError, match="never written"):
        nki.simulate(one_row_each)(X)


def test_bfloat16_is_rounded_where_it_is_written():
    def through_bf16(x):
        tile = sbuf(x.shape, nl.bfloat16)
        nisa.dma_copy(dst=tile, src=x)
        wide = sbuf(x.shape)
        nisa.tensor_copy(dst=wide, src=tile)
        return stored(wide)

    assert np.array_equal(nki.simulate(through_bf16)(X), X.astype(nl.bfloat16).astype(np.float32))


def test_matmul_accumulates_and_transposes_turn():
    def both(x):
        left, right = loaded(x[:, 0:128]), loaded(x[:, 128:256])
        total = tile_matmul(left, right, accumulate=False)
        tile_matmul(left, right, total, accumulate=True)
        transposed, result = psum((128, 128)), sbuf((128, 128))
        nisa.nc_transpose(dst=transposed, data=left)
        nisa.tensor_tensor(dst=result, data1=loaded(x[:, 0:128]), data2=transposed, op=nl.add)
        doubled = sbuf((128, 128))
        nisa.tensor_copy(dst=doubled, src=total)
        return stored(doubled), stored(result)

    doubled, result = nki.simulate(both)(X)
    left, right = X[:, :128], X[:, 128:]
    np.testing.assert_allclose(doubled, 2 * left.T @ right, rtol=1e-4, atol=1e-4)
    assert np.array_equal(result, left + left.T)


def test_a_predicated_copy_replaces_nans_too():
    def cleared(x, numbers):
        tile, where = loaded(x), sbuf((128, 256), nl.uint8)
        nisa.tensor_scalar(dst=where, data=loaded(numbers), op0=nl.greater, operand0=0.0)
        nisa.tensor_copy_predicated(dst=tile, src=0.0, predicate=where)
        return stored(tile)

    given = np.where(X > 1, np.nan, X).astype(np.float32)
    np.testing.assert_array_equal(nki.simulate(cleared)(given, X), np.where(X > 0, 0, X))


def test_affine_select_and_iota():
    def masked(x):
        tile, numbers = loaded(x[0:4, 0:6]), sbuf((4, 6))
        nisa.affine_select(
            dst=tile,
            pattern=[[-1, 6]],
            channel_multiplier=1,
            on_true_tile=tile,
            on_false_value=-9.0,
            cmp_op=nl.greater_equal,
            offset=1,
        )
        nisa.iota(dst=numbers, pattern=[[2, 6]], offset=5, channel_multiplier=100)
        return stored(tile), stored(numbers)

    tile, numbers = nki.simulate(masked)(X)
    row, column = np.arange(4)[:, None], np.arange(6)[None]
    assert np.array_equal(tile, np.where(1 + row - column >= 0, X[:4, :6], -9))
    assert np.array_equal(numbers, 5 + 100 * row + 2 * column)


def test_kernels_run_in_several_threads_at_a_time():
    started = threading.Barrier(2)

    def waits(x):
        tile = loaded(x)
        started.wait(timeout=120)
        return stored(tile)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda i: nki.simulate(waits)(X + i), range(2)))
    assert all(np.array_equal(result, X + i) for i, result in enumerate(results))
