"""What speculation computes on the device: a draft model's guesses, and their verification by the model at once.

Every new token of a request is drawn by a random number of its own (its seed and its index), by inverting the
distribution. A guess is accepted where it is the token of this draw, and the first that isn't is replaced by it. So a
guess with probability p is accepted with probability p, as in rejection sampling of a certain guess (Leviathan et al.
2023, arXiv:2211.17192), and the tokens are the same as without guesses. A draft model draws with the same numbers, so
that where the two models agree, so do their draws.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import CausalLM

from kanawa_runtime.serve.engine.rows import LOGPROBS, Rows, unpacked
from kanawa_runtime.serve.engine.steps import KVState, Steps
from kanawa_runtime.serve.engine.token_sampler import SamplingTables, sample_tokens


def verify(
    steps: Steps,
    params: Any,
    model_state: Any,
    kv: KVState,
    packed: Int[Array, "B columns"],
    guesses: Int[Array, "B K"],
    uniforms: Int[Array, "B T"],
    flags: Int[Array, ""],
) -> tuple[KVState, Int[Array, "T B"], Int[Array, "B T details"]]:
    """Feeds each row's last token and its guesses (`num_tokens` in all), and draws what follows each of them.

    Returns the tokens gained, -1 after the first guess that wasn't drawn. `uniforms` are the bits of floats.
    """
    rows, (count, length) = unpacked(packed), uniforms.shape
    ids = jnp.concatenate([kv.last[rows.slot][:, None], guesses], axis=1)
    places = jnp.arange(length, dtype=jnp.int32)[None]
    logits, caches = steps.logits_of(params, model_state, kv.caches, rows, ids)
    each = _each_token(rows, length)._replace(uniform=_floats(uniforms).reshape(-1))
    vocab = logits.shape[-1]
    nothing, mask = _no_tables(), jnp.full((count * length, -(-vocab // 32)), -1, jnp.int32)
    drawn = sample_tokens(logits.reshape(-1, vocab), each, nothing, flags, mask, num_logprobs=steps.num_logprobs)
    chosen = drawn.ids.reshape(count, length)
    right = (chosen[:, :-1] == guesses) & (places[:, 1:] < rows.num_tokens[:, None])
    accepted = jnp.sum(jnp.cumprod(right.astype(jnp.int32), axis=1), axis=1)
    last = jnp.take_along_axis(chosen, accepted[:, None], axis=1)[:, 0]
    valid = drawn.valid.reshape(count, length)
    gained = jnp.where((places <= accepted[:, None]) & (rows.num_tokens > 0)[:, None], valid, -1)
    details = drawn.details.reshape(count, length, -1)
    return KVState(caches, kv.last.at[rows.slot].set(last)), gained.T, details


class Guesser:
    """The steps of a draft model, whose cache has a page wherever the model's has one."""

    def __init__(self, model: CausalLM, known: Any, vocab: int) -> None:
        self._decode: Callable[..., Any] = kn.functional(model, "decode")
        self._known, self._vocab = known, vocab

    def prefill(self, params: Any, model_state: Any, caches: Any, packed: Array, ids: Array) -> Any:
        """Returns the draft's caches with a chunk of a prompt."""
        rows = unpacked(packed)
        last = jnp.maximum(rows.num_tokens - 1, 0)
        real = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] < rows.num_tokens[:, None]
        _, caches = self._logits(params, model_state, caches, rows, rows.length, real, ids, last)
        return caches

    def guess(
        self,
        params: Any,
        model_state: Any,
        caches: Any,
        packed: Array,
        last: Int[Array, " S"],
        uniforms: Array,
        flags: Array,
    ) -> tuple[Any, Int[Array, "B K"]]:
        """Returns the caches and K guesses a row; feeds the last guess too, which may turn out right."""
        rows, (count, length) = unpacked(packed), uniforms.shape
        floats = _floats(uniforms)
        nothing, mask = _no_tables(), jnp.full((count, -(-self._vocab // 32)), -1, jnp.int32)

        def body(step: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            caches, token, guesses = carry
            alive = (step < rows.num_tokens)[:, None]
            lengths = rows.length + step
            logits, caches = self._logits(params, model_state, caches, rows, lengths, alive, token[:, None], None)
            own = rows._replace(uniform=floats[:, step])
            token = sample_tokens(logits[:, 0], own, nothing, flags & ~LOGPROBS, mask, num_logprobs=0).ids
            # The last one is past the end, and dropped.
            return caches, token, guesses.at[:, step].set(token, mode="drop")

        guesses = jnp.zeros((count, length - 1), jnp.int32)
        caches, _, guesses = jax.lax.fori_loop(0, length, body, (caches, last[rows.slot], guesses))
        return caches, guesses

    def _logits(
        self,
        params: Any,
        model_state: Any,
        caches: Any,
        rows: Rows,
        lengths: Array,
        real: Array,
        ids: Array,
        last: Array | None,
    ) -> tuple[Float[Array, "B T V"], Any]:
        sequences = kn.contracts.Sequences(lengths=lengths, page_table=rows.pages, segment_ids=real.astype(jnp.int32))
        (logits, caches), _ = self._decode(params, model_state, ids, sequences, caches, last)
        if self._known is not None:
            logits = jnp.where(self._known[None, None], logits, -jnp.inf)
        return logits, caches


def _each_token(rows: Rows, length: int) -> Rows:
    """Returns the rows, each repeated for every one of its tokens."""
    return Rows(*(jnp.repeat(column, length, axis=0) for column in rows))


def _floats(bits: Int[Array, "B T"]) -> Float[Array, "B T"]:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _no_tables() -> SamplingTables:
    # Requests with penalties or biases are decoded a token at a time: what they ask for depends on each token before.
    return SamplingTables(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.bool), jnp.zeros((1, 1), jnp.float32))
