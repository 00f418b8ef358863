"""What the engine computes: a chunk of prompts, and a few tokens of all that run, as pure functions of device state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Int
from kanawa.contracts import CausalLM, Sequences

from kanawa_runtime.serve.engine.choose import Chosen, Tables, choose, tell
from kanawa_runtime.serve.engine.rows import Rows, unpacked


class DeviceState(NamedTuple):
    """All that lives on the device between steps, donated to each: caches, the slots' last tokens and tables."""

    caches: Any
    last: Int[Array, " S"]
    tables: Tables


class Steps:
    """The functions to compile for one model; `known`, bool [vocab], are the ids that may be drawn."""

    def __init__(self, model: CausalLM, *, has_slots: bool, known: Any, num_logprobs: int, fused_steps: int) -> None:
        self._decode: Callable[..., Any] = kn.functional(model, "decode")
        self._has_slots, self._known = has_slots, known
        self._num_logprobs, self._fused_steps = num_logprobs, fused_steps

    def decode(
        self, params: Any, model_state: Any, state: DeviceState, packed: Array, steps: Array, flags: Array, mask: Array
    ) -> tuple[DeviceState, Int[Array, "K B"], Int[Array, "K B details"]]:
        """Feeds each row's last token, `steps` times; returns the new ones, -1 where a row had stopped."""
        rows, count = unpacked(packed), packed.shape[0]
        shape = (self._fused_steps, count)
        ids = jnp.full(shape, -1, jnp.int32)
        details = jnp.zeros((*shape, 2 + 2 * self._num_logprobs), jnp.int32)
        carry = (jnp.zeros((), jnp.int32), state, state.last[rows.slot], rows.count > 0, ids, details)

        def going(carry: tuple[Any, ...]) -> Array:
            return (carry[0] < steps) & jnp.any(carry[3])

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, state, last, alive, ids, details = carry
            sequences = self._sequences(rows, rows.length + step, alive[:, None])
            (logits, caches), _ = self._decode(params, model_state, last[:, None], sequences, state.caches)
            state = state._replace(caches=caches)
            generated = rows.generated + step
            chosen, state = self._choose(
                logits[:, 0], rows, state, rows.length + step + 1, generated, alive, flags, mask
            )
            ids = ids.at[step].set(jnp.where(alive, chosen.ids, -1))
            details = details.at[step].set(chosen.details)
            stopped = jnp.any(chosen.ids[:, None] == rows.stops, axis=1) & (generated >= rows.min_tokens)
            alive = alive & ~stopped & (step + 1 < rows.count)
            return step + 1, state, chosen.ids, alive, ids, details

        _, state, last, _, ids, details = jax.lax.while_loop(going, body, carry)
        return state._replace(last=state.last.at[rows.slot].set(last)), ids, details

    def prefill(
        self, params: Any, model_state: Any, state: DeviceState, packed: Array, ids: Array, flags: Array, mask: Array
    ) -> tuple[DeviceState, Int[Array, "1 B"], Int[Array, "1 B details"]]:
        """Takes in a chunk [B, T] of each row's prompt; returns the token after it, of use after the last one."""
        rows = unpacked(packed)
        real = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] < rows.count[:, None]
        sequences = self._sequences(rows, rows.length, real)
        last = jnp.maximum(rows.count - 1, 0)
        (logits, caches), _ = self._decode(params, model_state, ids, sequences, state.caches, last)
        state = state._replace(caches=caches)
        return self._first(logits[:, 0], rows, state, flags, mask)

    def score(
        self, params: Any, model_state: Any, state: DeviceState, packed: Array, ids: Array, flags: Array, mask: Array
    ) -> tuple[DeviceState, Int[Array, "1 B"], Int[Array, "1 B details"], Int[Array, "T details"]]:
        """Does what `prefill` does for one row whose `ids` have the token after the chunk too, and tells of each."""
        rows = unpacked(packed)
        fed, following = ids[:, :-1], ids[:, 1:]
        real = jnp.arange(fed.shape[1], dtype=jnp.int32)[None] < rows.count[:, None]
        sequences = self._sequences(rows, rows.length, real)
        (logits, caches), _ = self._decode(params, model_state, fed, sequences, state.caches)
        told = tell(self._only_known(logits[0]), following[0], self._num_logprobs)
        last = jnp.maximum(rows.count - 1, 0)
        logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0]
        return *self._first(logits, rows, state._replace(caches=caches), flags, mask), told

    def _first(
        self, logits: Array, rows: Rows, state: DeviceState, flags: Array, mask: Array
    ) -> tuple[DeviceState, Array, Array]:
        alive = rows.count > 0
        chosen, state = self._choose(logits, rows, state, rows.length + rows.count, rows.generated, alive, flags, mask)
        state = state._replace(last=state.last.at[rows.slot].set(chosen.ids))
        return state, chosen.ids[None], chosen.details[None]

    def _choose(
        self,
        logits: Array,
        rows: Rows,
        state: DeviceState,
        positions: Array,
        generated: Array,
        alive: Array,
        flags: Array,
        mask: Array,
    ) -> tuple[Chosen, DeviceState]:
        """Returns what is chosen, and the state with it counted."""
        logits = self._only_known(logits)
        count = self._num_logprobs
        chosen = choose(logits, rows, state.tables, positions, generated, flags, mask, num_logprobs=count)
        counted = state.tables.counts.at[rows.slot, chosen.ids].add(alive.astype(jnp.int32))
        return chosen, state._replace(tables=state.tables._replace(counts=counted))

    def _only_known(self, logits: Array) -> Array:
        return logits if self._known is None else jnp.where(self._known[None], logits, -jnp.inf)

    def _sequences(self, rows: Rows, lengths: Array, real: Bool[Array, "B T"]) -> Sequences:
        return Sequences(
            lengths=lengths,
            slots=rows.slot if self._has_slots else None,
            page_table=rows.pages,
            segment_ids=real.astype(jnp.int32),
        )


def seat(state: DeviceState, slot: Array, counts: Array, in_prompt: Array, bias: Array) -> DeviceState:
    """Returns the state with one slot's tables set."""
    new = Tables(counts, in_prompt, bias)
    tables = Tables(*(table.at[slot].set(row) for table, row in zip(state.tables, new, strict=True)))
    return state._replace(tables=tables)
