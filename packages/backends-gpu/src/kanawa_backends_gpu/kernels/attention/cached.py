"""attention.gpu.decode and attention.gpu.paged: attention over a cache for NVIDIA GPUs, in Pallas on Triton.

One query or a few against a long row of keys: reading the keys is all the work, so they are read once for all heads
that share them, and a row is split over as many programs as fill the GPU (see `streaming.py`). Pages are gathered
through the page table inside the kernel: no sequence is copied, and no page past its length is read. Compiled for H100
and B200, run in Pallas's interpreter, never on a GPU.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.platform import current_platform
from kanawa.kernels.verdict import Verdict, first_refusal, refuse
from kanawa.plugins import DeviceSpec
from kanawa.plugins.devices import device_spec_of_kind

from kanawa_backends_gpu.kernels.attention.query_tiles import owned_queries
from kanawa_backends_gpu.kernels.attention.streaming import geometry_of, stream
from kanawa_backends_gpu.kernels.triton_tiles import NARROWEST, unfit_predicates
from kanawa_backends_gpu.target_config import SILICON, silicon

_DTYPES = ("bfloat16", "float16", "float32")
#: Wider ones would need their products cut along the width: registers hold a tile's whole output.
_WIDEST = 256
#: Rows of a tile: more would take registers from the tile of keys, fewer read keys more often.
_MOST_ROWS = 64
_HOPPERS = 132


def refusal(problem: AttentionProblem) -> Verdict:
    """Returns support, or what the streamed pass doesn't have."""
    p = problem
    widths = sorted({p.head_dim, p.v_head_dim})
    wrong = [width for width in widths if width % NARROWEST or width > _WIDEST]
    predicates = unfit_predicates(p.mask)
    inside = any(mask.needs_segments for group in p.mask.any_of for mask in group)
    ragged = p.ragged_sequences is not None
    return first_refusal(
        (p.mode == "train", "mode train: it has no gradient"),
        (p.dtype not in _DTYPES, f"dtype {p.dtype}; needs {', '.join(_DTYPES)}"),
        (bool(wrong), f"head widths {wrong} aren't multiples of {NARROWEST} up to {_WIDEST}"),
        (ragged and p.has_bias, "a dense bias with ragged queries"),
        (ragged and inside, "segments inside any_of with ragged queries"),
        (bool(predicates), predicates),
    )


def attend(
    kernel: Kernel, problem: AttentionProblem, operands: Operands, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """Returns (out [B, T, H, Dv] in q's dtype, log-sum-exp fp32 [B, H, T]) by one pass over the cache."""
    p = problem
    geometry = geometry_of(
        p,
        multiprocessors=kernel.setting("programs", _multiprocessors()),
        keys=kernel.setting("keys", _keys(p)),
        queries=kernel.setting("queries", _queries(p)),
    )
    out, lse = stream(p, operands, geometry, interpret=interpret)
    if p.ragged_sequences is not None:
        # No tile owns the queries outside of all sequences, and nothing was written there.
        owned = owned_queries(p, operands)[None, None, :, None]
        out, lse = jnp.where(owned[..., None], out, 0), jnp.where(owned, lse, -jnp.inf)
    if geometry.splits == 1:
        return out[0], lse[0].transpose(0, 2, 1)
    whole = jax.nn.logsumexp(lse, axis=0, keepdims=True)
    # Where no share saw a key, -inf - -inf would be NaN.
    weights = jnp.where(jnp.isneginf(lse), 0.0, jnp.exp(lse - jnp.where(jnp.isneginf(whole), 0.0, whole)))
    merged = jnp.sum(out * weights[..., None], axis=0)
    return merged.astype(p.dtype), whole[0].transpose(0, 2, 1)


def tunings(problem: AttentionProblem) -> tuple[Tuning, ...]:
    """Returns steps of keys and numbers of programs worth measuring."""
    own, programs = _keys(problem), _multiprocessors()
    keys = [k for k in (16, 32, 64, 128) if k != own and k <= 2 * own]
    more = [n for n in (programs // 2, 2 * programs, 4 * programs) if problem.kv_length >= 4 * own]
    return (*((("keys", k),) for k in keys), *((("programs", n),) for n in more))


def _keys(problem: AttentionProblem) -> int:
    """Returns the keys of a step: three of them, keys and values, in flight within half a multiprocessor's memory."""
    width = problem.head_dim + problem.v_head_dim
    size = jnp.dtype(problem.dtype).itemsize
    fitting = 96 * 1024 // (3 * width * size)
    return min(64, max(NARROWEST, 1 << int(math.log2(max(fitting, 1)))))


def _queries(problem: AttentionProblem) -> int:
    """Returns the queries of a tile: as many as its rows hold, and no more than a sequence has on average."""
    sequences = problem.ragged_sequences or 1
    usual = -(-problem.q_length // sequences)
    return max(1, min(usual, _MOST_ROWS // problem.group_size))


def _multiprocessors() -> int:
    _, kind = current_platform()
    device = None if kind is None else device_spec_of_kind(kind)
    return _HOPPERS if device is None or device.family not in SILICON else silicon(device).multiprocessors


class _CachedAttention(Kernel):
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi"})
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"attention_over_cache", 2),)
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other steps of keys (`keys`) and numbers of programs (`programs`)."""
        return tunings(problem)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns (out [B, T, H, Dv] in q's dtype, log-sum-exp fp32 [B, H, T])."""
        return attend(self, problem, operands, interpret=self.interpret)


class DecodeAttention(_CachedAttention):
    """Decoding and prefill over dense keys: any mask, lengths, positions, bias, cap, sinks; no gradient."""

    name: ClassVar[str] = "attention.gpu.decode"
    #: Under cuDNN and attention.gpu.pallas, whose tiles of queries are taller: it is for one query or a few.
    priority: ClassVar[int] = 4

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return refuse("keys lie in pages; attention.gpu.paged reads those") if problem.paged else refusal(problem)


class PagedAttention(_CachedAttention):
    """Decoding and prefill over pages, of any size, ragged queries too: any mask, bias, cap, sinks; no gradient."""

    name: ClassVar[str] = "attention.gpu.paged"
    priority: ClassVar[int] = 10

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        return refusal(problem) if problem.paged else refuse("keys lie in rows; attention.gpu.decode reads those")
