"""attention.neuron.decode: attention over a cache, dense or in pages, on NeuronCores; unverified on hardware."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.merge import merge_sinks
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_neuron.kernels.attention.intervals import bounds_of, not_interval
from kanawa_backends_neuron.kernels.attention.ranges import BLOCK, TILE
from kanawa_backends_neuron.kernels.attention.training import DTYPES, LARGEST_HEAD
from kanawa_backends_neuron.kernels.launch import launch

#: Fewer keys a page take more descriptors of the DMA engines than their bytes are worth.
SMALLEST_PAGE = 8
#: Heads and tiles of queries are unrolled into the program.
MOST_TILES = 512


class Steps(NamedTuple):
    """How a row's keys are cut: keys a page, pages a step of the loop, steps of a row."""

    page_size: int
    pages: int
    per_row: int


class NkiDecodeAttention(Kernel):
    """Unverified on hardware: decoding and prefill over a cache with kv_lengths, masks by position, GQA, cap, sinks."""

    name: ClassVar[str] = "attention.neuron.decode"
    priority: ClassVar[int] = 5
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (("attention_decode", 2),)

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        widest = max(problem.head_dim, problem.v_head_dim)
        gap = not_interval(problem.mask)
        tiles = problem.num_kv_heads * -(-problem.q_length * problem.group_size // TILE)
        return first_refusal(
            (problem.mode == "train", "mode train; the kernel has no backward: attention.neuron.nki has"),
            (not problem.has_kv_lengths, "no kv_lengths; attention.neuron.nki takes whole rows"),
            (problem.ragged_sequences is not None, "ragged queries; the kernel takes as many of each row"),
            (problem.has_segments, "mask has segments; the kernel takes a cache with one sequence a row"),
            (problem.has_bias, "dense bias; the kernel takes none"),
            (problem.has_kv_positions, "kv_positions are an operand; the kernel's keys sit at 0, 1, 2, …"),
            (bool(gap), gap),
            (problem.dtype not in DTYPES, f"dtype {problem.dtype}; needs {' or '.join(DTYPES)}"),
            (widest > LARGEST_HEAD, f"head width {widest}; {LARGEST_HEAD} at most"),
            (steps_of(problem) is None, _uncut(problem)),
            (tiles > MOST_TILES, f"{tiles} tiles of queries and key heads; {MOST_TILES} at most make a program"),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in v's dtype and the log-sum-exp, fp32 [B, H, T]."""
        steps = steps_of(problem)
        if steps is None:
            raise ValueError(_uncut(problem))
        bounds = jnp.broadcast_to(bounds_of(problem, operands), (problem.batch, problem.q_length, 2))
        pool = [_pages(operands[name], problem, steps) for name in ("k", "v")]
        q = _folded(problem, operands["q"])
        arrays = (
            *(q, *pool, _table(problem, operands, steps), _limits(bounds, steps)),
            _starts(problem.batch, steps),
            operands["kv_lengths"].astype(jnp.float32)[:, None],
            # Queries of one key head lie one head after the other.
            jnp.tile(bounds, (1, problem.group_size, 1)),
        )
        outputs = (
            jax.ShapeDtypeStruct((*q.shape[:3], problem.v_head_dim), q.dtype),
            jax.ShapeDtypeStruct((*q.shape[:3], 1), jnp.float32),
        )
        static = (problem.scale, problem.logit_cap or 0.0, steps.page_size, steps.pages)
        out, lse = launch("attention.decode:attention_decode", outputs, arrays, *static)
        lse = lse.reshape(problem.batch, problem.num_heads, problem.q_length)
        lse = jnp.where(lse < _SEEN, -jnp.inf, lse)
        out = out.reshape(problem.batch, problem.num_heads, problem.q_length, problem.v_head_dim).swapaxes(1, 2)
        if problem.has_sinks:
            out, lse = merge_sinks(out, lse, operands["sinks"])
        return out.astype(operands["v"].dtype), lse


#: A log-sum-exp below it is of a row that saw no key.
_SEEN = -5e29


def steps_of(problem: AttentionProblem) -> Steps | None:
    """Returns how keys are cut into steps of up to 512, whole pages each; None if they can't be."""
    page = problem.page_size
    if page is None:
        # A dense cache is read as pages of its own, as large as fit.
        sizes = (size for size in range(min(BLOCK, problem.kv_length), 0, -1) if problem.kv_length % size == 0)
        page = next(sizes, 0)
    if not SMALLEST_PAGE <= page <= BLOCK:
        return None
    entries = problem.kv_length // page
    most = max(1, BLOCK // page)
    pages = next(count for count in range(min(most, entries), 0, -1) if entries % count == 0)
    return Steps(page, pages, entries // pages)


def _uncut(problem: AttentionProblem) -> str:
    if problem.paged:
        return f"page_size {problem.page_size}; needs {SMALLEST_PAGE} to {BLOCK}"
    return f"kv_length {problem.kv_length} has no divisor between {SMALLEST_PAGE} and {BLOCK} to cut it into steps by"


def _folded(problem: AttentionProblem, x: jax.Array) -> jax.Array:
    """Returns [B, T, H, D] as [B, K, G * T, D]."""
    rows = problem.group_size * problem.q_length
    return x.swapaxes(1, 2).reshape(problem.batch, problem.num_kv_heads, rows, x.shape[3])


def _pages(x: jax.Array, problem: AttentionProblem, steps: Steps) -> jax.Array:
    """Returns keys or values as pages [P, N, K * D]; nothing moves."""
    return x.reshape(-1, steps.page_size, problem.num_kv_heads * x.shape[3])


def _table(problem: AttentionProblem, operands: Operands, steps: Steps) -> jax.Array:
    """Returns the pages of each step: int32 [B * steps, pages]."""
    shape = (problem.batch * steps.per_row, steps.pages)
    if not problem.paged:
        return jnp.arange(shape[0] * shape[1], dtype=jnp.int32).reshape(shape)
    # What stands behind a row's last page may be anything: the step that holds that page reads it, and masks it.
    last = operands["k"].shape[0] - 1
    return jnp.clip(operands["page_table"].astype(jnp.int32), 0, last).reshape(shape)


def _limits(bounds: jax.Array, steps: Steps) -> jax.Array:
    """Returns each row's first step with a key to see and the one after its last, over all rows: int32 [B, 2]."""
    keys = steps.page_size * steps.pages
    places = bounds.astype(jnp.int32)
    first = jnp.clip(jnp.min(places[..., 0], axis=1) // keys, 0, steps.per_row)
    end = jnp.clip(jnp.max(places[..., 1], axis=1) // keys + 1, first, steps.per_row)
    offset = jnp.arange(bounds.shape[0], dtype=jnp.int32) * steps.per_row
    return jnp.stack([first + offset, end + offset], axis=1)


def _starts(batch: int, steps: Steps) -> jax.Array:
    """Returns the position of each step's first key: fp32 [B * steps, 1]."""
    each = jnp.arange(steps.per_row, dtype=jnp.float32) * float(steps.page_size * steps.pages)
    return jnp.tile(each, batch)[:, None]
