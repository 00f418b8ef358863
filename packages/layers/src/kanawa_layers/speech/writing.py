"""Which id a decoder of speech writes next: rules of times (Whisper, arXiv:2212.04356, section 2.3), and draws."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.contracts import Writing


def allowed_logits(
    logits: Float[Array, "B V"], ids: Int[Array, "B N"], at: Int[Array, ""], writing: Writing, end_id: int
) -> Float[Array, "B V"]:
    """Returns the logits of the ids for place `at`, minus infinity where one may not be written.

    Times come in pairs, but before the end, and never fall; a transcript begins with one. Where times together are
    likelier than any text, the next id is a time. The id before `first_time` says that there are none.
    """
    vocab, row = jnp.arange(logits.shape[1])[None], jnp.arange(ids.shape[1])[None]
    first = writing.first_time[:, None]
    begins = (at == writing.prompt_lengths)[:, None]
    allowed = writing.allowed[None] & (writing.allowed_first[None] | ~begins)

    is_time = vocab >= first
    written_times = (row >= writing.prompt_lengths[:, None]) & (row < at) & (ids >= first)
    last, before = (jnp.any(written_times & (row == at - back), axis=1, keepdims=True) for back in (1, 2))
    # The first place counts as one after a pair's first half.
    before = before | (at - 2 < writing.prompt_lengths)[:, None]
    latest = jnp.max(jnp.where(written_times, ids, first - 1), axis=1, keepdims=True)
    earliest = jnp.where(last & ~before, latest, latest + 1)
    timed = jnp.where(last & before, ~is_time, jnp.where(last, vocab >= end_id, True))
    timed &= ~is_time | (vocab >= earliest)
    timed &= (vocab != first - 1) & (~begins | is_time & (vocab <= first + writing.last_begin))
    kept = jnp.where(allowed & (timed | (first < 0)), logits, -jnp.inf)

    of_times = jax.nn.logsumexp(jnp.where(is_time, kept, -jnp.inf), axis=1, keepdims=True)
    of_text = jnp.max(jnp.where(is_time, -jnp.inf, kept), axis=1, keepdims=True)
    return jnp.where((first >= 0) & (of_times > of_text) & ~is_time, -jnp.inf, kept)


def drawn(logits: Float[Array, "B V"], at: Int[Array, ""], writing: Writing) -> Int[Array, " B"]:
    """Returns the likeliest id of each row, or one drawn at its temperature by its own seed."""

    def one(row: Float[Array, " V"], temperature: jax.Array, seed: jax.Array, place: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), place)
        drawn_id = jax.random.categorical(key, row / jnp.maximum(temperature, 1e-6))
        return jnp.where(temperature > 0, drawn_id, jnp.argmax(row)).astype(jnp.int32)

    # A row's place counts from its prompt's end: other rows' prompts change no draw.
    found: jax.Array = jax.vmap(one)(logits, writing.temperature, writing.seed, at - writing.prompt_lengths)
    return found
