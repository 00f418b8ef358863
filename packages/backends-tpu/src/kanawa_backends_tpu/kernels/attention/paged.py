"""attention.tpu.paged: attention over a cache, in pages or dense, for decoding, prefill and both in one batch.

Only the pages that hold keys which a mask leaves are read, through the page table, while the pages before them are
worked on; the pools are read as they lie in the cache. A dense row is read in runs of tokens, as if they were pages.
Where XLA keeps pages so that none is in one piece (`narrow_pages`), the rows' own are gathered first.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.scores import scale_in_queries
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.platform import current_platform
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec
from kanawa.plugins.devices import device_spec_of_kind

from kanawa_backends_tpu.kernels.attention.paged_kernel import paged_attention
from kanawa_backends_tpu.kernels.attention.paged_layout import fitting, in_fitting_pages, price
from kanawa_backends_tpu.kernels.attention.paged_plan import (
    DENSE_PAGE,
    KEYS,
    ROWS,
    PagedPlan,
    dense_page,
    plan_pages,
    vmem_bytes,
)

_MASK_PARTS = frozenset({"causal", "window", "chunk"})
#: Of the scalar memory, 1 MiB on every generation: page table, lengths and cuts.
_SCALAR_BYTES = 768 * 2**10
#: Tokens of a tile of 16-bit values.
_TILE = 16
#: Of a dense row, fetched in one piece: for fewer, starting the copies takes longer than they do.
_FEWEST_TOKENS = 8
_VMEM_BYTES = 40 * 2**20


class PagedAttention(Kernel):
    """Queries that are their row's last, over pages or dense rows with lengths; GQA, window, chunk, cap, sinks."""

    name: ClassVar[str] = "attention.tpu.paged"
    priority: ClassVar[int] = 20
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = ((r"kanawa_paged_attention", 2),)
    #: Pallas's interpreter instead of a TPU: for tests.
    interpret: ClassVar[bool] = False
    #: TensorCores that share a device's work, where tests say so; otherwise the device's.
    cores: ClassVar[int | None] = None

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        p = problem
        extra = sorted(p.mask.uses - _MASK_PARTS)
        fitted = fitting(p)
        paged = _as_paged(fitted)
        plan = None if paged.page_size is None else self._plan(paged, jnp.dtype(p.dtype).itemsize, 1)
        scalars = 0 if plan is None else _scalar_bytes(plan, p.paged)
        verdict = first_refusal(
            (p.mode == "train", "mode train; the kernel has no backward pass"),
            (not p.has_kv_lengths, "no kv_lengths; it reads a cache whose rows have lengths"),
            (p.has_q_positions or p.has_kv_positions, "positions are operands; its queries are their row's last"),
            (p.has_bias, "dense bias; it takes none"),
            (bool(extra), f"mask has {', '.join(extra)}; it knows {', '.join(sorted(_MASK_PARTS))}"),
            (p.dtype not in ("bfloat16", "float32"), f"dtype {p.dtype}; needs bf16 or fp32"),
            *_lies_badly(paged, plan),
            (scalars > _SCALAR_BYTES, f"a page table or lengths of {scalars >> 10} KiB; at most {_SCALAR_BYTES >> 10}"),
            *_comes_in_crumbs(fitted, paged),
            *_too_large(paged, plan),
        )  # fmt: skip
        return Verdict(ok=True, reason=price(p)) if verdict else verdict

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other sizes of blocks: of keys for one token a row, of queries too for more."""
        rows = () if problem.q_length == 1 else ((("block_rows", 512),), (("block_rows", 2048),))
        return ((("block_keys", 256),), (("block_keys", 1024),), *rows)

    def _plan(self, problem: AttentionProblem, element_bytes: int, cores: int) -> PagedPlan:
        settings = self.setting("block_keys", KEYS), self.setting("block_rows", ROWS)
        return plan_pages(problem, element_bytes, cores, *settings)

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, None]:
        """Returns (out [B, T, H, Dv] in q's dtype, None)."""
        problem, operands = fitting(problem), in_fitting_pages(problem, operands)
        paged = _as_paged(problem)
        k, v = operands["k"], operands["v"]
        lengths = operands["kv_lengths"].astype(jnp.int32)
        plan = self._plan(paged, max(k.dtype.itemsize, v.dtype.itemsize), self.cores or _cores())
        k, v = plan.layout.view(k), plan.layout.view(v)
        scalars = {"lengths": lengths}
        if problem.paged:
            scalars["table"] = operands["page_table"].astype(jnp.int32).reshape(-1)
        scalars |= _pieces(plan, operands)
        q = _arrange(paged, plan, operands["q"])
        sinks = _sinks(paged, plan, operands["sinks"]) if problem.has_sinks else None
        out = paged_attention(paged, plan, scalars, q, (k, v), sinks, self.interpret)
        return _restore(paged, plan, out), None


def _as_paged(problem: AttentionProblem) -> AttentionProblem:
    """Returns the problem with dense rows as runs of pages."""
    if problem.paged or problem.kv_length == 0:
        return problem
    return dataclasses.replace(problem, page_size=dense_page(problem.kv_length))


def _scalar_bytes(plan: PagedPlan, paged: bool) -> int:
    """Returns what the prefetched scalars take: the pages of a dense row follow each other and need no table."""
    table = plan.sequences * plan.entries if paged else 0
    return 4 * (table + 4 * plan.sequences + 2 * plan.blocks)


def _comes_in_crumbs(problem: AttentionProblem, paged: AttentionProblem) -> tuple[tuple[bool, str], ...]:
    """Returns the refusal of dense rows that could only be fetched by a few tokens at a time."""
    size = paged.page_size or 0
    text = f"kv_length {problem.kv_length} has no divisor from {_FEWEST_TOKENS} to {DENSE_PAGE} to read rows by"
    return ((not problem.paged and 0 < size < min(_FEWEST_TOKENS, problem.kv_length), text),)


def _too_large(problem: AttentionProblem, plan: PagedPlan | None) -> tuple[tuple[bool, str], ...]:
    if plan is None:
        return ((True, "no keys"),)
    itemsize = jnp.dtype(problem.dtype).itemsize
    needed = vmem_bytes(plan, problem, itemsize)
    text = f"a block takes {needed // 2**20} MiB of on-chip memory; the kernel keeps to {_VMEM_BYTES // 2**20}"
    return ((needed > _VMEM_BYTES, text),)


def _lies_badly(problem: AttentionProblem, plan: PagedPlan | None) -> tuple[tuple[bool, str], ...]:
    """Returns the refusals of pools that XLA keeps in an order in which a page is not one piece."""
    if plan is None:
        return ()
    size, heads = plan.page_size, plan.layout.heads
    pages = f"pages of {size} tokens"
    widths = f"{problem.head_dim} and {problem.v_head_dim}"
    lanes = (
        f"{pages} with heads {widths} wide, no multiples of 128: XLA spreads such a page over the pool, and 128 tokens "
        f"aren't whole pages of it; take pages of 128 (page_size=128) or of a power of two below"
    )
    tiles = f"{pages} of {heads} key heads aren't whole tiles; take a multiple of {_TILE}"
    return (
        (plan.layout.order == "lanes" and size % 128 != 0, lanes),
        (plan.layout.order == "heads" and size % _TILE != 0, tiles),
    )


def _cores() -> int:
    """Returns how many TensorCores share a device's work: two on v4 and v5p."""
    _, kind = current_platform()
    spec = None if kind is None else device_spec_of_kind(kind)
    return 1 if spec is None else max(1, spec.cores_per_chip // spec.jax_devices_per_chip)


def _pieces(plan: PagedPlan, operands: Operands) -> dict[str, jax.Array]:
    """Returns where blocks and sequences cut the queries into pieces; nothing where that is known beforehand."""
    if plan.length is not None:
        return {}
    starts = operands["query_starts"].astype(jnp.int32)
    ends = plan.blocks * plan.tokens
    # A new piece begins with each block and with each sequence; both at one place leave one of the two empty.
    at = jnp.concatenate([jnp.arange(plan.blocks, dtype=jnp.int32) * plan.tokens, jnp.clip(starts[:-1], 0, ends)])
    cuts = jnp.sort(at)
    owners = jnp.searchsorted(starts, cuts, side="right").astype(jnp.int32) - 1
    firsts = jnp.arange(plan.cores, dtype=jnp.int32) * (plan.blocks // plan.cores * plan.tokens)
    return {
        "starts": starts,
        "cuts": jnp.append(cuts, ends).astype(jnp.int32),
        "owners": owners,
        "first_piece": jnp.searchsorted(cuts, firsts, side="left").astype(jnp.int32),
    }


def _arrange(problem: AttentionProblem, plan: PagedPlan, q: jax.Array) -> jax.Array:
    """Returns q [B, T, H, D] as [heads, tokens x group, D], filled up to whole blocks."""
    if scale_in_queries(problem):
        q = q * jnp.asarray(problem.scale, q.dtype)
    batch, length, heads, width = q.shape
    if plan.flat:
        q = jnp.pad(q.reshape(batch, heads, width), ((0, 0), (0, plan.group - heads), (0, 0)))
        return q.reshape(1, batch * plan.group, width)
    whole = plan.length or plan.blocks * plan.tokens
    q = jnp.pad(q, ((0, 0), (0, whole - length), (0, 0), (0, 0)))
    q = q.reshape(batch * whole, plan.heads, plan.group, width).swapaxes(0, 1)
    return q.reshape(plan.heads, batch * whole * plan.group, width)


def _restore(problem: AttentionProblem, plan: PagedPlan, out: jax.Array) -> jax.Array:
    """Undoes `_arrange`."""
    width = out.shape[-1]
    if plan.flat:
        return out.reshape(problem.batch, 1, plan.group, width)[:, :, : problem.num_heads]
    out = out.reshape(plan.heads, -1, plan.group, width).swapaxes(0, 1)
    out = out.reshape(problem.batch, -1, problem.num_heads, width)
    return out[:, : problem.q_length]


def _sinks(problem: AttentionProblem, plan: PagedPlan, sinks: jax.Array) -> jax.Array:
    """Returns the sink of each row of a block: fp32 [heads, rows, 1]."""
    by_head = sinks.astype(jnp.float32).reshape(plan.heads, -1)
    by_head = jnp.pad(by_head, ((0, 0), (0, plan.group - by_head.shape[1])))
    return jnp.tile(by_head, (1, plan.tokens))[..., None]
