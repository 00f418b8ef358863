"""attention.tpu.flash: attention for training and prefill, written for the schedule that TPUs' compiler makes of it."""

import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.dropout import row_words
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.mask_reach import predicates_of
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_tpu.kernels.attention.flash.additions import bias_arrays, slopes
from kanawa_backends_tpu.kernels.attention.flash.backward import BackwardKernel, backward_call, scratch_bytes
from kanawa_backends_tpu.kernels.attention.flash.bias_gradient import BiasGradientKernel, bias_gradient_call
from kanawa_backends_tpu.kernels.attention.flash.forward import ForwardKernel, forward_call
from kanawa_backends_tpu.kernels.attention.flash.masking import unfit_predicates
from kanawa_backends_tpu.kernels.attention.flash.matmuls import base_of
from kanawa_backends_tpu.kernels.attention.flash.scalars import Vectors, has_data, rows_of_pairs, tables, vectors
from kanawa_backends_tpu.kernels.attention.flash.tiles import Side, Tiles, side

#: Bytes of a row of a block: wider heads, or fp32 ones, get smaller blocks.
_ROW_BYTES = 256
#: What a narrow mask leaves of larger blocks is less than what it hides in them.
_NARROW = 512
#: Sums of a row that fit on chip beside the blocks: v5p and v7x have 64 MiB, of which the compiler needs some.
_MOST_SUMS_BYTES = 30 * 2**20
#: Of the scalar memory, 1 MiB on every generation: tables of a grid's steps.
_MOST_SCALAR_BYTES = 768 * 2**10
#: The log-sum-exp of a row without keys: every weight is then 0.
_NO_KEYS = 3e38
_WIDEST = 256
#: Conditions that attention.tpu.paged knows.
_OF_CACHES = frozenset({"causal", "window", "chunk"})
_WORDS = ("drop_first", "drop_second")


class FlashAttention(Kernel):
    """Training and prefill; any mask, bias, ALiBi, dropout, positions, GQA, cap, sinks, any length."""

    name: ClassVar[str] = "attention.tpu.flash"
    priority: ClassVar[int] = 20
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout"})
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (
        ("flash_attention_bias", 2),
        ("flash_attention_backward", 5),
        ("flash_attention_forward", 2),
    )
    #: Queries or keys of a step of the grid, at most.
    largest_block: ClassVar[int] = 1024
    #: Of a block that the mask cuts through, those that are looked at one by one.
    largest_part: ClassVar[int] = 512
    #: Queries and keys whose scores exist at a time, forward and backward.
    group: ClassVar[tuple[int, int]] = (256, 1024)
    group_backward: ClassVar[tuple[int, int]] = (512, 512)
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        predicates = unfit_predicates(problem.mask)
        width = max(problem.head_dim, problem.v_head_dim)
        needed = scratch_bytes(problem, self._tiles(problem))
        scalars = _scalar_bytes(problem, self._tiles(problem))
        return first_refusal(
            (problem.paged, "keys lie in pages; flash takes whole rows"),
            (problem.mode == "decode", "mode decode: flash is for many queries a row"),
            (
                _lies_in_cache(problem),
                "lengths are operands; attention.tpu.paged reads no more than they say",
            ),
            (bool(predicates), predicates),
            (problem.dtype not in ("bfloat16", "float32"), f"dtype {problem.dtype}; needs bf16 or fp32"),
            (width > _WIDEST, f"head dim {width}; flash keeps at most {_WIDEST} on chip"),
            (min(problem.q_length, problem.kv_length) == 0, "no queries or no keys"),
            (
                problem.mode == "train" and needed > _MOST_SUMS_BYTES,
                f"sums of {needed >> 20} MiB a row in backward; at most {_MOST_SUMS_BYTES >> 20} fit on chip",
            ),
            (
                scalars > _MOST_SCALAR_BYTES,
                f"tables of {scalars >> 10} KiB say which blocks meet; at most {_MOST_SCALAR_BYTES >> 10} fit on chip",
            ),
        )

    def computed(self, problem: AttentionProblem, device: DeviceSpec | None) -> float:
        """Returns the pairs of the parts of blocks that a window or a chunk sees, over those that it lets through."""
        del device
        if problem.mask.window is None and problem.mask.chunk is None:
            return 1.0
        tiles = self._tiles(problem)
        parts = (tiles.q.blocks * tiles.q.parts, tiles.kv.blocks * tiles.kv.parts)
        return problem.visited_share(parts) * problem.q_length * problem.kv_length / max(1, problem.pairs)

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns smaller blocks, and longer ones of keys, where they differ from the kernel's own choice."""
        del device
        tried = ((("block_q", 512), ("block_kv", 512)), (("block_kv", 2048),))
        own = self._tiles(problem)
        return tuple(each for each in tried if _tiles(problem, self._sizes(dict(each)), self.largest_part) != own)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in q's dtype and the log-sum-exp, fp32 [B, H, T], -inf for a row without keys."""
        tiles = self._tiles(problem)
        scalars, arrays = _prepared(problem, operands, tiles, queries_down=True)
        if problem.has_sinks:
            scalars["sinks"] = operands["sinks"].astype(jnp.float32) * (1 / base_of(problem).to_natural)
        body = ForwardKernel(problem, tiles, base_of(problem), tuple(scalars), tuple(arrays), self.group)
        out, lse = forward_call(body, problem.num_heads, arrays, scalars, self.interpret)()
        return out[:, :, : problem.q_length].swapaxes(1, 2), lse[:, :, 0, : problem.q_length]

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of q, k, v, bias and sinks from out and a log-sum-exp, maybe over more keys."""
        tiles, base = self._tiles(problem), base_of(problem)
        delta = row_delta(out, cotangents)
        lse = jnp.where(jnp.isneginf(residuals), _NO_KEYS, residuals * (1 / base.to_natural))
        of_queries = {
            "dout": _head_major(cotangents.astype(operands["q"].dtype), tiles.q),
            "lse": _of_queries(lse, tiles.q, _NO_KEYS),
            "delta": _of_queries(delta, tiles.q, 0),
        }
        scalars, arrays = _prepared(problem, operands, tiles, queries_down=False)
        arrays |= of_queries
        body = BackwardKernel(problem, tiles, base, tuple(scalars), tuple(arrays), self.group_backward)
        dq, dk, dv = backward_call(body, arrays, scalars, self.interpret)()
        grads = {
            "q": dq[..., : problem.q_length].transpose(0, 3, 1, 2),
            "k": dk[:, :, : problem.kv_length].swapaxes(1, 2),
            "v": dv[:, :, : problem.kv_length].swapaxes(1, 2),
        }
        if problem.has_bias:
            grads["bias"] = self._bias_gradient(problem, operands, tiles, of_queries)
        if problem.has_sinks:
            grads["sinks"] = sinks_gradient(operands["sinks"], residuals, delta)
        return grads

    def _bias_gradient(
        self, problem: AttentionProblem, operands: Operands, tiles: Tiles, of_queries: dict[str, jax.Array]
    ) -> jax.Array:
        scalars, arrays = _prepared(problem, operands, tiles, queries_down=True)
        arrays |= of_queries
        body = BiasGradientKernel(problem, tiles, base_of(problem), tuple(scalars), tuple(arrays))
        dtype = jnp.bfloat16 if operands["bias"].dtype == jnp.bfloat16 else jnp.float32
        return bias_gradient_call(body, arrays, scalars, dtype, self.interpret)()

    def _tiles(self, problem: AttentionProblem) -> Tiles:
        return _tiles(problem, self._sizes(dict(self.tuning)), self.largest_part)

    def _sizes(self, tuning: Mapping[str, int]) -> tuple[int, int]:
        return tuning.get("block_q", self.largest_block), tuning.get("block_kv", self.largest_block)


@functools.lru_cache(maxsize=256)
def _tiles(problem: AttentionProblem, sizes: tuple[int, int], part: int) -> Tiles:
    mask = problem.mask
    width = max(problem.head_dim, problem.v_head_dim) * jnp.dtype(problem.dtype).itemsize
    most = [max(128, size * _ROW_BYTES // max(_ROW_BYTES, width)) for size in sizes]
    if mask.window is not None or mask.chunk is not None:
        most = [min(size, _NARROW) for size in most]
    known = problem.has_default_positions
    return Tiles(side(problem.q_length, most[0], part), side(problem.kv_length, most[1], part), mask, known)


@functools.lru_cache(maxsize=256)
def _scalar_bytes(problem: AttentionProblem, tiles: Tiles) -> int:
    """Returns what the prefetched tables take (`scalars.tables`): of each step, and of each block and part of a row."""
    data = has_data(problem, tiles)
    each = 4 + problem.batch * data
    limits = sum(2 * side.blocks * (1 + side.parts) for side in (tiles.q, tiles.kv))
    limits *= (not tiles.known) + problem.has_segments
    pairs = rows_of_pairs(problem, tiles) * len(predicates_of(problem.mask)) * tiles.q.blocks * tiles.kv.blocks
    pairs *= 1 + tiles.q.parts * tiles.kv.parts
    return 4 * (each * len(tiles.steps(queries_first=True)) + problem.batch * limits + pairs)


def _lies_in_cache(problem: AttentionProblem) -> bool:
    """Returns whether attention.tpu.paged is for the problem: rows of a cache, and nothing that only flash knows."""
    beyond = problem.has_bias or problem.extras or problem.has_q_positions or problem.has_kv_positions
    return problem.has_kv_lengths and not beyond and problem.mask.uses <= _OF_CACHES


def _prepared(
    problem: AttentionProblem, operands: Operands, tiles: Tiles, queries_down: bool
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns the scalars to prefetch and the arrays of a kernel that has queries along sublanes, or keys."""
    row_vectors = vectors(problem, operands, tiles)
    scalars = tables(problem, operands, tiles, tiles.steps(queries_down), row_vectors, queries_down)
    arrays = _arrays(problem, operands, tiles) | _rows(row_vectors)
    if problem.has_alibi:
        scalars["slopes"] = slopes(operands)
    if problem.has_bias:
        arrays |= bias_arrays(problem, operands["bias"], tiles, queries_down=queries_down)
    if problem.dropout_rate:
        words = (jax.lax.bitcast_convert_type(word, jnp.int32) for word in row_words(operands))
        arrays |= {name: _of_queries(word, tiles.q, 0) for name, word in zip(_WORDS, words, strict=True)}
    return scalars, arrays


def _arrays(problem: AttentionProblem, operands: Operands, tiles: Tiles) -> dict[str, jax.Array]:
    q = operands["q"]
    scaled = (q.astype(jnp.float32) * base_of(problem).queries).astype(q.dtype)
    return {
        "queries": _head_major(scaled, tiles.q),
        "k": _head_major(operands["k"], tiles.kv),
        "v": _head_major(operands["v"], tiles.kv),
    }


def _of_queries(x: jax.Array, of: Side, padding: float) -> jax.Array:
    """Returns numbers [B, H, T] as [B, H, 1, T], padded."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, of.padded - of.length)), constant_values=padding)[:, :, None]


def _head_major(x: jax.Array, of: Side) -> jax.Array:
    """Returns [B, T, H, D] as [B, H, T, D], padded."""
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, of.padded - of.length), (0, 0)))


def _rows(row_vectors: Vectors) -> dict[str, jax.Array]:
    return {f"{name}_across": x[:, None] for name, x in vars(row_vectors).items() if x is not None}
