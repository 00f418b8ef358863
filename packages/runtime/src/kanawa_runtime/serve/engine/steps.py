"""The engine's computations as pure functions of device state: prefill of chunks, decoding, and sampling."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float, Int
from kanawa.contracts import CausalLM, Sequences

from kanawa_runtime.serve.engine.rows import Rows, unpacked
from kanawa_runtime.serve.engine.token_sampler import (
    SamplingTables,
    draw_by_noise,
    draw_by_sums,
    drawn_tokens,
    logprob_details,
    sample_tokens,
    with_faults,
)


class KVState(NamedTuple):
    """The model's caches, and the last token of each slot; donated to every step."""

    caches: Any
    last: Int[Array, " S"]


class Steps:
    """The functions to compile for one model; `known`, bool [vocab], are the ids that may be drawn."""

    def __init__(
        self, model: CausalLM, *, has_slots: bool, known: Any, num_logprobs: int, fused_steps: int,
        has_adapters: bool = False, noisy_draws: bool = False,
    ) -> None:  # fmt: skip
        self._decode: Callable[..., Any] = kn.functional(model, "decode")
        self._has_slots, self.known, self._vocab = has_slots, known, model.config.vocab_size
        self._has_adapters = has_adapters
        #: Of a model that reads pictures, whose tokens have coordinates in so many streams.
        self._picture_token: int | None = None
        self._streams = 0
        self.num_logprobs, self._fused_steps = num_logprobs, fused_steps
        self._draw = draw_by_noise if noisy_draws else draw_by_sums

    def read_pictures(self, token_id: int, streams: int) -> None:
        """Sets what stands for pictures, and in how many streams tokens have coordinates; before anything is traced."""
        self._picture_token, self._streams = token_id, streams

    def decode(
        self, params: Any, model_state: Any, kv: KVState, packed: Array, steps: Array
    ) -> tuple[KVState, Int[Array, "K B"], Float[Array, "B V"]]:
        """Feeds each row's last token, then the likeliest ones, `steps` times in all.

        Returns the likeliest tokens, -1 where a row had stopped (or a fault of `with_faults`), and the last step's
        logits, for `sample`.
        """
        rows, count = unpacked(packed), packed.shape[0]
        ids = jnp.full((self._fused_steps, count), -1, jnp.int32)
        logits = jnp.zeros((count, self._vocab), jnp.float32)
        carry = (jnp.zeros((), jnp.int32), kv.caches, kv.last[rows.slot], rows.num_tokens > 0, ids, logits)

        def going(carry: tuple[Any, ...]) -> Array:
            more: Array = (carry[0] < steps) & jnp.any(carry[3])
            return more

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, caches, last, alive, ids, _ = carry
            sequences = self._sequences(rows, rows.length + step, alive[:, None])
            (logits, caches), _ = self._decode(params, model_state, last[:, None], sequences, caches)
            logits = self._only_known(logits[:, 0])
            chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            valid = with_faults(chosen, logits, chosen)
            ids = ids.at[step].set(jnp.where(alive, valid, -1))
            alive = alive & ~jnp.any(valid[:, None] == rows.stops, axis=1) & (valid >= 0)
            alive = alive & (step + 1 < rows.num_tokens)
            return step + 1, caches, chosen, alive, ids, logits

        _, caches, last, _, ids, logits = jax.lax.while_loop(going, body, carry)
        return KVState(caches, kv.last.at[rows.slot].set(last)), ids, logits

    def draw(
        self, params: Any, model_state: Any, kv: KVState, packed: Array, uniforms: Int[Array, "K B"], steps: Array,
        flags: Array,
    ) -> tuple[KVState, Int[Array, "K B"], Int[Array, "K B details"]]:  # fmt: skip
        """Decodes as `decode` does, and draws each token by a random number of its own (the bits of a float).

        Returns the tokens and their details. A row that has met a stop token stays so until its slot is prefilled: a
        call that was sent before that was known computes nothing for it.
        """
        rows, count = unpacked(packed), packed.shape[0]
        ids = jnp.full((self._fused_steps, count), -1, jnp.int32)
        details = jnp.zeros((self._fused_steps, count, 2 + 2 * self.num_logprobs), jnp.int32)
        last = kv.last[rows.slot]
        alive = (rows.num_tokens > 0) & (last >= 0) & ~jnp.any(last[:, None] == rows.stops, axis=1)
        carry = (jnp.zeros((), jnp.int32), kv.caches, last, alive, ids, details)

        def going(carry: tuple[Any, ...]) -> Array:
            more: Array = (carry[0] < steps) & jnp.any(carry[3])
            return more

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, caches, last, alive, ids, details = carry
            sequences = self._sequences(rows, rows.length + step, alive[:, None])
            fed = jnp.maximum(last, 0)[:, None]
            (logits, caches), _ = self._decode(params, model_state, fed, sequences, caches)
            logits = self._only_known(logits[:, 0])
            own = rows._replace(uniform=jax.lax.bitcast_convert_type(uniforms[step], jnp.float32))
            drawn = drawn_tokens(logits, logits, own, flags, num_logprobs=self.num_logprobs, draw=self._draw)
            ids = ids.at[step].set(jnp.where(alive, drawn.valid, -1))
            details = details.at[step].set(drawn.details)
            stopped = jnp.any(drawn.valid[:, None] == rows.stops, axis=1) | (drawn.valid < 0)
            last = jnp.where(alive, jnp.where(stopped, -1, drawn.ids), last)
            return step + 1, caches, last, alive & ~stopped & (step + 1 < rows.num_tokens), ids, details

        _, caches, last, _, ids, details = jax.lax.while_loop(going, body, carry)
        return KVState(caches, kv.last.at[rows.slot].set(last)), ids, details

    def prefill(
        self, params: Any, model_state: Any, kv: KVState, packed: Array, ids: Array, *seen: Array
    ) -> tuple[KVState, Int[Array, "1 B"], Float[Array, "B V"]]:
        """Prefills a chunk [B, T] of each row's prompt; the ids and logits returned count after its last chunk.

        `seen` is what `PictureTower.see` returns, of a model that reads pictures.
        """
        rows, sequences = self._chunk(packed, ids)
        ids, sequences = self._with_pictures(ids, sequences, *seen)
        last = jnp.maximum(rows.num_tokens - 1, 0)
        (logits, caches), _ = self._decode(params, model_state, ids, sequences, kv.caches, last)
        return self._after(logits[:, 0], rows, caches, kv)

    def score(
        self, params: Any, model_state: Any, kv: KVState, packed: Array, ids: Array, *seen: Array
    ) -> tuple[KVState, Int[Array, "1 B"], Float[Array, "B V"], Int[Array, "T details"]]:
        """Prefills as `prefill` does, and returns the log-probabilities; `ids` have the token after the chunk too."""
        fed, following = ids[:, :-1], ids[:, 1:]
        rows, sequences = self._chunk(packed, fed)
        fed, sequences = self._with_pictures(fed, sequences, *seen)
        following = (
            following if self._picture_token is None else jnp.where(following < 0, self._picture_token, following)
        )
        (logits, caches), _ = self._decode(params, model_state, fed, sequences, kv.caches)
        every = self._only_known(logits.reshape(-1, logits.shape[-1]))
        details = logprob_details(every, following.reshape(-1), self.num_logprobs)
        last = jnp.maximum(rows.num_tokens - 1, 0)
        logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
        return *self._after(logits, rows, caches, kv), details

    def logits_of(
        self, params: Any, model_state: Any, caches: Any, rows: Rows, ids: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T V"], Any]:
        """Feeds the first `num_tokens` of each row; returns the logits after each of them, and the caches."""
        real = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] < rows.num_tokens[:, None]
        (logits, caches), _ = self._decode(params, model_state, ids, self._sequences(rows, rows.length, real), caches)
        return logits if self.known is None else jnp.where(self.known[None, None], logits, -jnp.inf), caches

    def sample(
        self, last: Array, tables: SamplingTables, packed: Array, logits: Array, flags: Array, mask: Array
    ) -> tuple[Int[Array, " S"], SamplingTables, Int[Array, "1 B"], Int[Array, "B details"]]:
        """Draws each row's token by its request's sampling, in place of the likeliest one."""
        rows = unpacked(packed)
        chosen = sample_tokens(logits, rows, tables, flags, mask, num_logprobs=self.num_logprobs, draw=self._draw)
        counted = tables.counts.at[rows.slot, chosen.ids].add((rows.num_tokens > 0).astype(jnp.int32))
        return last.at[rows.slot].set(chosen.ids), tables._replace(counts=counted), chosen.valid[None], chosen.details

    def _chunk(self, packed: Array, ids: Array) -> tuple[Rows, Sequences]:
        rows = unpacked(packed)
        real = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] < rows.num_tokens[:, None]
        return rows, self._sequences(rows, rows.length, real)

    def _with_pictures(
        self, ids: Array, sequences: Sequences, pool: Array | None = None, coordinates: Array | None = None
    ) -> tuple[Array, Sequences]:
        """Returns the ids with the picture token where they name a row of the pool, whose features the tokens have."""
        if pool is None or self._picture_token is None:
            return ids, sequences
        is_picture = ids < 0
        features = pool.reshape(-1, pool.shape[-1])[jnp.where(is_picture, -1 - ids, 0)]
        sequences = sequences._replace(embeddings=features, is_embedded=is_picture)
        sequences = sequences if coordinates is None else sequences._replace(coordinates=coordinates)
        return jnp.where(is_picture, self._picture_token, ids), sequences

    def _after(self, logits: Array, rows: Rows, caches: Any, kv: KVState) -> tuple[KVState, Array, Array]:
        logits = self._only_known(logits)
        chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        valid = with_faults(chosen, logits, chosen)
        return KVState(caches, kv.last.at[rows.slot].set(chosen)), valid[None], logits

    def _only_known(self, logits: Array) -> Array:
        return logits if self.known is None else jnp.where(self.known[None], logits, -jnp.inf)

    def _sequences(self, rows: Rows, lengths: Array, real: Bool[Array, "B T"]) -> Sequences:
        coordinates = None
        if self._streams:
            places = lengths[:, None] + jnp.arange(real.shape[1], dtype=jnp.int32) + rows.shift[:, None]
            coordinates = jnp.broadcast_to(places[..., None], (*places.shape, self._streams))
        return Sequences(
            coordinates=coordinates,
            lengths=lengths,
            slots=rows.slot if self._has_slots else None,
            page_table=rows.pages,
            segment_ids=real.astype(jnp.int32),
            adapters=rows.adapter if self._has_adapters else None,
        )


def write_sampling_rows(
    tables: SamplingTables, slot: Array, counts: Array, in_prompt: Array, bias: Array
) -> SamplingTables:
    """Returns the tables with the rows of one slot replaced."""
    new = SamplingTables(counts, in_prompt, bias)
    return SamplingTables(*(table.at[slot].set(row) for table, row in zip(tables, new, strict=True)))
