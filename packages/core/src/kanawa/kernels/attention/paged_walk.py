"""One new token a row over pages on a CPU: keys are read where they lie, in one loop that is one function.

XLA runs a program on a CPU as a list of calls; a page's few operations each cost one, and pages are copied together
first so that there are fewer. A computation that carries `xla_cpu_small_call` becomes one compiled function instead,
loops included: here it goes from page to page as a C program would, and keeps a page in the nearest cache.

It runs on one core, for loops that read one array aren't run beside each other. On two cores it's quicker than both
with copies (docs/results/2026-11-22-serving.md); with many cores copies win.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from kanawa.arrays.cores import cores
from kanawa.kernels.attention import scores as sc
from kanawa.kernels.attention.operands import q_positions
from kanawa.kernels.attention.paged import as_floats
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Operands

#: Starts are never counted from the end, which would take a comparison each.
_slice = functools.partial(jax.lax.dynamic_slice, allow_negative_indices=False)
#: Keys that are taken in at once, at least: pages may hold one token.
_FEWEST_KEYS = 16
#: Query heads of a key head: each is a product of one row, so many of them want a matrix product.
_MOST_GROUPED = 8
#: Scores at once, and numbers of a head: XLA hands larger reductions to a library, which such a function can't call.
_MOST_SCORES = 512
_WIDEST_HEAD = 256
#: Cores of a machine up to which one of them is quicker; measured with two.
_MOST_CORES = 4
#: What the function can hold: known operations on positions, which no predicate of a plugin promises.
_MASKS = frozenset({"causal", "window", "chunk", "prefix"})


def walks(problem: AttentionProblem) -> bool:
    """Returns whether pages of this problem are walked."""
    # Pools of bfloat16 as such are widened whole, before the loop; as bits they aren't.
    kept = problem.kv_bits or problem.dtype == "float32"
    small = problem.group_size <= _MOST_GROUPED and problem.group_size * _keys(problem) <= _MOST_SCORES
    narrow = max(problem.head_dim, problem.v_head_dim) <= _WIDEST_HEAD and problem.mask.uses <= _MASKS
    few_cores = cores() <= _MOST_CORES
    return problem.q_length == 1 and kept and small and narrow and few_cores and available()


@functools.cache
def available() -> bool:
    """Returns whether the installed jaxlib compiles such a function, found by a small one."""

    def doubled(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda y: y < 8.0, lambda y: y + y, x)

    try:
        # It may be asked while something is traced, whose trace the call must not become part of.
        with jax.ensure_compile_time_eval(), jax.default_device(jax.local_devices(backend="cpu")[0]):
            compiled = jax.jit(lambda x: as_one_function(doubled, x)).lower(np.float32(1.0)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return "xla_cpu_small_call" in (compiled.as_text() or "")


def as_one_function(function: Callable[..., Any], *operands: Any) -> Any:
    """Returns function(*operands), which XLA's CPU compiler makes one function of; elsewhere it changes nothing."""
    return set_xla_metadata(jax.jit(function)(*operands), xla_cpu_small_call="true", inlineable="false")


def walk(problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns of each row and head the largest score, the sum of exponentials [B, K, G] and that of values; fp32."""
    shape = (problem.batch, problem.num_kv_heads, problem.group_size, problem.head_dim)
    q = operands["q"].astype(jnp.float32).reshape(shape)
    lengths = jnp.clip(operands["kv_lengths"], 0, problem.kv_length).astype(jnp.int32)
    first, left = jnp.zeros_like(lengths), (problem.mask.window or (None, None))[0]
    if left is not None and not (problem.mask.prefix or problem.has_q_positions):
        # Keys before the query's window are nobody's.
        first = jnp.maximum(lengths - 1 - left, 0) // _keys(problem)
    given = {
        "q": q * problem.scale if sc.scale_in_queries(problem) else q,
        "lengths": lengths,
        "first": first,
    }
    if problem.has_alibi or problem.mask.uses:
        # An operand that the function doesn't read ends the process: XLA's compiler has no place for it.
        positions = q_positions(problem, operands)[:, 0]
        given["positions"] = jnp.broadcast_to(positions, (problem.batch,)).astype(jnp.int32)
    for name in ("k", "v", "page_table", "prefix_lengths", "alibi_slopes"):
        if name in operands:
            given[name] = operands[name]
    return as_one_function(functools.partial(_all_heads, problem), given)


def _keys(problem: AttentionProblem) -> int:
    size = problem.page_size or 1
    return -(-_FEWEST_KEYS // size) * size


def _all_heads(problem: AttentionProblem, given: Operands) -> tuple[jax.Array, jax.Array, jax.Array]:
    heads, rows = problem.num_kv_heads, (problem.batch, problem.num_kv_heads, problem.group_size)
    sums = (jnp.full(rows, sc.MASKED), jnp.zeros(rows), jnp.zeros((*rows, problem.v_head_dim)))

    def one(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        at, sums = carry
        row, head = at // heads, at % heads
        new = _one_head(problem, given, row, head)
        return at + 1, tuple(_put(x, y, (row, head)) for x, y in zip(sums, new, strict=True))

    return jax.lax.while_loop(lambda carry: carry[0] < problem.batch * heads, one, (jnp.int32(0), sums))[1]


def _one_head(
    problem: AttentionProblem, given: Operands, row: jax.Array, head: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the sums [G], [G] and [G, Dv] of a row's queries of one key head."""
    group, keys = problem.group_size, _keys(problem)
    queries = _slice(given["q"], (row, head, 0, 0), (1, 1, *given["q"].shape[2:]))[0, 0]
    length, position, prefix = (_of(given.get(name), row) for name in ("lengths", "positions", "prefix_lengths"))

    def add(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, top, total, values = carry
        k, v = (_read(problem, given, name, row, head, step) for name in ("k", "v"))
        place = step * keys + jnp.arange(keys, dtype=jnp.int32)
        seen = (place < length)[None]
        if problem.mask.uses:
            prefixes = None if prefix is None else prefix[None]
            allowed = problem.mask.allowed(position[None], place, None, None, prefixes)
            seen = seen if allowed is None else seen & allowed[0]
        # A product of one row each: of several it would be a library's, which the function can't call.
        scores = jnp.stack([k @ queries[g] for g in range(group)])
        scores = jnp.where(seen, _changed(problem, given, scores, head, place, position), sc.MASKED)
        highest = jnp.maximum(top, jnp.max(scores, axis=1))
        kept = jnp.exp(top - highest)
        weights = jnp.where(seen, jnp.exp(scores - highest[:, None]), 0.0)
        added = jnp.stack([weights[g] @ v for g in range(group)])
        return step + 1, highest, total * kept + jnp.sum(weights, axis=1), values * kept[:, None] + added

    first = _of(given["first"], row)
    start: Any = (first, jnp.full(group, sc.MASKED), jnp.zeros(group), jnp.zeros((group, problem.v_head_dim)))
    _, top, total, values = jax.lax.while_loop(lambda carry: carry[0] * keys < length, add, start)
    return top, total, values


def _changed(
    problem: AttentionProblem, given: Operands, scores: jax.Array, head: jax.Array, place: jax.Array, position: Any
) -> jax.Array:
    """Returns the scores [G, S] scaled, capped and with what positions add to them."""
    if not sc.scale_in_queries(problem):
        scores = scores * problem.scale
    if problem.logit_cap is not None:
        scores = problem.logit_cap * jnp.tanh(scores / problem.logit_cap)
    if problem.has_alibi:
        slopes = given["alibi_slopes"].astype(jnp.float32).reshape(problem.num_kv_heads, problem.group_size)
        slopes = _slice(slopes, (head, 0), (1, problem.group_size))[0]
        scores = scores - slopes[:, None] * jnp.abs(place - position).astype(jnp.float32)[None]
    return scores


def _put(x: jax.Array, part: jax.Array, at: tuple[jax.Array, ...]) -> jax.Array:
    """Returns x with a part at `at`; a scatter is none of what such a function can hold."""
    start: list[Any] = [*at, *[0] * part.ndim]
    part = part.reshape((1,) * len(at) + part.shape)
    return jax.lax.dynamic_update_slice(x, part, start, allow_negative_indices=False)


def _of(x: jax.Array | None, row: jax.Array) -> Any:
    return None if x is None else _slice(x, (row,), (1,))[0]


def _read(
    problem: AttentionProblem, given: Operands, name: str, row: jax.Array, head: jax.Array, step: jax.Array
) -> jax.Array:
    """Returns the keys or values [S, D] of a step, in fp32."""
    pool, table = given[name], given["page_table"]
    size, width = pool.shape[1], pool.shape[3]
    parts = []
    for page in range(_keys(problem) // size):
        entry = step * (_keys(problem) // size) + page
        # Both slices stay in bounds by themselves, as past the table's end, where no key is.
        at = _slice(table, (row, entry), (1, 1))[0, 0]
        parts.append(_slice(pool, (at, 0, head, 0), (1, size, 1, width)).reshape(size, width))
    read = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
    return as_floats(problem, read).astype(jnp.float32)
