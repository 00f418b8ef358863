"""The next token of each row from its logits, on the device: penalties, masks, temperature, cuts, and the draw.

What a batch doesn't need isn't computed: each part is under one condition for the whole batch, never under one per
row, so a row's token can't depend on the other rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt
from kanawa.arrays.draws import keyed_draw

from kanawa_runtime.serve.engine.rows import CUT, LOGPROBS, MASK, RANDOM, TABLES, Rows

#: Tokens in a block of `draw_by_sums`.
_BLOCK = 128
#: In place of a token: a row's logits aren't finite, or no token may follow it.
NOT_FINITE, NOTHING = -2, -3


#: From logits [B, V] and each row's random number to its token.
Draw = Callable[[Array, Array], Array]


class SamplingTables(NamedTuple):
    """What penalties and biases need of each slot, [slots, vocab]."""

    counts: Int[Array, "S V"]
    in_prompt: Bool[Array, "S V"]
    bias: Float[Array, "S V"]


class Sampled(NamedTuple):
    """The ids, and their details: [B, 2 + 2n] int32 of log-probability, rank, n likeliest ids and their logprobs."""

    ids: Int[Array, " B"]
    details: Int[Array, "B details"]
    #: The ids, or the fault of a row: NOT_FINITE or NOTHING.
    valid: Int[Array, " B"]


def sample_tokens(
    logits: Float[Array, "B V"],
    rows: Rows,
    tables: SamplingTables,
    flags: Int[Array, ""],
    mask: Int[Array, "B words"],
    *,
    num_logprobs: int,
    draw: Draw | None = None,
) -> Sampled:
    """Returns each row's token, drawn by the row's own random number alone; `tables` are read at the rows' slots."""

    def asked(flag: int) -> Bool[Array, ""]:
        return flags & flag != 0

    adjusted = jax.lax.cond(asked(TABLES), _adjusted, lambda x, *_: x, logits, rows, tables)
    adjusted = jax.lax.cond(asked(MASK), _masked, lambda x, _: x, adjusted, mask)
    return drawn_tokens(logits, adjusted, rows, flags, num_logprobs=num_logprobs, draw=draw)


def drawn_tokens(
    logits: Float[Array, "B V"],
    adjusted: Float[Array, "B V"],
    rows: Rows,
    flags: Int[Array, ""],
    *,
    num_logprobs: int,
    draw: Draw | None = None,
) -> Sampled:
    """Returns each row's token by the adjusted logits, and its details by those of the model."""

    def asked(flag: int) -> Bool[Array, ""]:
        return flags & flag != 0

    likeliest = jnp.argmax(adjusted, axis=-1).astype(jnp.int32)

    def drawn(x: Float[Array, "B V"]) -> Int[Array, " B"]:
        scaled = x / jnp.maximum(rows.temperature, 1e-6)[:, None]
        cuts = (rows.top_k, rows.top_p, rows.min_p, rows.temperature > 0)
        scaled = jax.lax.cond(asked(CUT), cut_tail, lambda y, *_: y, scaled, *cuts)
        return jnp.where(rows.temperature > 0, (draw or draw_by_sums)(scaled, rows.uniform), likeliest)

    ids = jax.lax.cond(asked(RANDOM), drawn, lambda _: likeliest, adjusted)
    details = jax.lax.cond(asked(LOGPROBS), _details, _no_details, logits, ids, jnp.zeros(num_logprobs))
    return Sampled(ids, details, with_faults(ids, adjusted, likeliest))


def with_faults(ids: Int[Array, "*rows"], logits: Float[Array, "*rows V"], likeliest: Int[Array, "*rows"]) -> Array:
    """Returns the ids; NOT_FINITE or NOTHING for rows without a token that can be drawn."""
    # The likeliest is where the first NaN is, if there is one.
    best = jnp.take_along_axis(logits, likeliest[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.isfinite(best), ids, jnp.where(best == -jnp.inf, NOTHING, NOT_FINITE))


def _adjusted(logits: Float[Array, "B V"], rows: Rows, tables: SamplingTables) -> Float[Array, "B V"]:
    """Returns logits with penalties and biases, and without stop tokens where there are too few tokens yet."""
    counts, in_prompt, bias = (table[rows.slot] for table in tables)
    has = rows.has_tables[:, None] != 0
    repeated = (counts > 0) | in_prompt
    by = rows.repetition[:, None]
    # CTRL's penalty shrinks a positive logit and grows a negative one: both make the token less likely.
    x = jnp.where(has & repeated, jnp.where(logits > 0, logits / by, logits * by), logits)
    x = x - jnp.where(has, rows.frequency[:, None] * counts + rows.presence[:, None] * (counts > 0), 0.0)
    x = x + jnp.where(has, bias, 0.0)
    early = rows.generated < rows.min_tokens
    stops = jnp.where(early[:, None], rows.stops, -1)
    # -1 wraps to the last id, so what isn't a stop token is sent past the end, where the write is dropped.
    stops = jnp.where(stops < 0, logits.shape[1], stops)
    later: Array = jax.vmap(lambda row, at: row.at[at].set(-jnp.inf, mode="drop"))(x, stops)
    return later


def _masked(logits: Float[Array, "B V"], mask: Int[Array, "B words"]) -> Float[Array, "B V"]:
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.int32)[None, None]) & 1
    allowed = bits.reshape(mask.shape[0], -1)[:, : logits.shape[1]] != 0
    return jnp.where(allowed, logits, -jnp.inf)


def cut_tail(
    logits: Float[Array, "B V"],
    top_k: Int[Array, " B"],
    top_p: Float[Array, " B"],
    min_p: Float[Array, " B"],
    drawn: Bool[Array, " B"],
) -> Float[Array, "B V"]:
    """Returns logits with all outside of top-k (0: all), the top-p nucleus and min-p at minus infinity; ties stay.

    Rows that aren't `drawn` need no threshold.
    """
    vocab = logits.shape[1]
    keys = _sortable(logits)
    top_k = jnp.where(top_k <= 0, vocab, jnp.minimum(top_k, vocab))

    def holds_few(at: Array) -> Any:
        return jnp.sum(keys >= at[:, None], axis=1) >= top_k

    lowest = _searched(jnp.any(drawn & (top_k < vocab)), keys, holds_few)
    keys = jnp.where(keys >= lowest[:, None], keys, 0)
    weights = jnp.where(keys > 0, jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True)), 0.0)
    wanted = top_p * jnp.sum(weights, axis=1)

    def holds_enough(at: Array) -> Array:
        return jnp.sum(jnp.where(keys >= at[:, None], weights, 0.0), axis=1) >= wanted

    lowest = _searched(jnp.any(drawn & (top_p < 1)), keys, holds_enough)
    # Searched or not, the whole mass is all tokens: a row's cut may not depend on other rows.
    lowest = jnp.where(top_p < 1, lowest, 0)
    # A threshold of 0 masks nothing besides top-k.
    mask = (keys >= jnp.maximum(lowest, 1)[:, None]) & (weights >= min_p[:, None])
    return jnp.where(mask, logits, -jnp.inf)


def _sortable(x: Float[Array, "B V"]) -> UInt[Array, "B V"]:
    """Returns unsigned numbers in the same order; 0 is below all floats."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 0, bits | jnp.uint32(1 << 31), ~bits)


def _searched(is_asked: Bool[Array, ""], keys: UInt[Array, "B V"], holds: Callable[[Array], Array]) -> Array:
    """Returns each row's largest threshold where any row needs one; 0, which masks nothing, where none does."""
    none = jnp.zeros(keys.shape[0], jnp.uint32)
    found: Array = jax.lax.cond(is_asked, lambda: _largest_threshold(keys, holds), lambda: none)
    return found


def _largest_threshold(keys: UInt[Array, "B V"], holds: Callable[[Array], Array]) -> UInt[Array, " B"]:
    """Returns the largest number for which `holds`, which is true up to some number and false beyond; 0 for none.

    Built bit by bit: 32 passes over the logits, where sorting a row takes a hundred times as long on a CPU.
    """

    def with_bit(step: Array, at: Array) -> Array:
        tried = at | (jnp.uint32(1) << (jnp.uint32(31) - step.astype(jnp.uint32)))
        return jnp.where(holds(tried), tried, at)

    largest: Array = jax.lax.fori_loop(0, 32, with_bit, jnp.zeros(keys.shape[0], jnp.uint32))
    return largest


def draw_by_sums(logits: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """Returns one draw a row by inverting the distribution: one random number a row, where Gumbel takes one a token.

    Sums of blocks say in which block the draw falls, and sums within it where: a running sum over a whole vocabulary
    costs many times as much.
    """
    weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    count = -(-weights.shape[1] // _BLOCK)
    weights = jnp.pad(weights, ((0, 0), (0, count * _BLOCK - weights.shape[1]))).reshape(-1, count, _BLOCK)
    blocks = jnp.cumsum(jnp.sum(weights, axis=2), axis=1)
    at = uniform * blocks[:, -1]
    block = _first_above(blocks, at)
    before = jnp.where(block > 0, jnp.take_along_axis(blocks, jnp.maximum(block - 1, 0)[:, None], axis=1)[:, 0], 0.0)
    within = jnp.take_along_axis(weights, block[:, None, None], axis=1)[:, 0]
    return (block * _BLOCK + _first_above(jnp.cumsum(within, axis=1), at - before)).astype(jnp.int32)


def draw_by_noise(logits: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """Returns one draw a row by noise that follows from the random number's bits; another program can repeat it."""
    weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    return keyed_draw(weights, jax.lax.bitcast_convert_type(uniform, jnp.int32))


def _first_above(sums: Float[Array, "B N"], at: Float[Array, " B"]) -> Int[Array, " B"]:
    """Returns the first index whose running sum is above `at`; the last one that adds anything where rounding has none.

    What adds nothing is never returned: its sum is that of the one before it.
    """
    above = jnp.sum(sums <= at[:, None], axis=1)
    return jnp.minimum(above, jnp.sum(sums < sums[:, -1:], axis=1))


def logprob_details(logits: Float[Array, "B V"], ids: Int[Array, " B"], num_logprobs: int) -> Int[Array, "B details"]:
    """Returns the packed log-probability and rank of each id, and the likeliest ids with theirs."""
    return _details(logits, ids, jnp.zeros(num_logprobs))


def _details(logits: Array, ids: Array, count: Array) -> Array:
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    own = jnp.take_along_axis(logprobs, ids[:, None], axis=1)
    rank = jnp.sum(logprobs > own, axis=1, keepdims=True, dtype=jnp.int32) + 1
    parts = [jax.lax.bitcast_convert_type(own, jnp.int32), rank]
    if count.shape[0]:
        top, top_ids = jax.lax.top_k(logprobs, count.shape[0])
        parts += [top_ids.astype(jnp.int32), jax.lax.bitcast_convert_type(top, jnp.int32)]
    return jnp.concatenate(parts, axis=1)


def _no_details(logits: Array, ids: Array, count: Array) -> Array:
    del ids
    return jnp.zeros((logits.shape[0], 2 + 2 * count.shape[0]), jnp.int32)
