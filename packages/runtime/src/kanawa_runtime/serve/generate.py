"""Generation in two compiled programs: prefill the prompts, then one loop that decodes to the end."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.contracts import CausalLM, Environment, Sequences
from kanawa.errors import UsageError

from kanawa_runtime.serve.sampling import Sampling, SamplingConfig, sample

#: Prompts are padded to a multiple of this, so that prompts of similar length share a compiled prefill.
_PROMPT_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class Completion:
    """New token ids after a prompt, the log-probability of each, and why it ended: "stop" or "length"."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str


class LoopState(NamedTuple):
    """Carry of the decoding loop: `ids` and `logprobs` [B, max_tokens] fill from the left."""

    count: Int[Array, ""]
    last: Int[Array, " B"]
    done: Array
    ids: Int[Array, "B N"]
    logprobs: Float[Array, "B N"]
    caches: Any


class Generator:
    """Generates with one model and set of parameters; programs are compiled on first use for each shape."""

    def __init__(
        self,
        model: CausalLM,
        params: Any,
        *,
        state: Any = None,
        environment: Environment | None = None,
        cache_dtype: str = "float32",
    ) -> None:
        self.model = model
        self.environment = environment or Environment()
        self.state = state or {}
        self.cache_dtype = cache_dtype
        with self.environment.active():
            self.params = jax.jit(model.unstacked)(params)
        self._prefill = jax.jit(self.prefill, static_argnames=("sampling",), donate_argnums=3)
        self._loop = jax.jit(self.decode_loop, static_argnames=("sampling", "stop_ids"), donate_argnums=2)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingConfig | None = None,
        stop_ids: Sequence[int] = (),
        first_tokens: np.ndarray | None = None,
    ) -> list[Completion]:
        """Returns one completion a prompt; prompts may differ in length. Raises UsageError on an empty prompt.

        `first_tokens`, bool [prompts, vocab], restricts each completion's first token.
        """
        if max_tokens < 1 or not prompts or not all(len(p) for p in prompts):
            message = (
                f"generate needs at least one token a prompt and max_tokens >= 1; "
                f"got prompt lengths {[len(p) for p in prompts]} and max_tokens {max_tokens}"
            )
            raise UsageError(message)
        chosen = Sampling.of(sampling or SamplingConfig())
        ids, lengths = _padded(prompts)
        rows, padded = ids.shape
        total = -(-(padded + max_tokens) // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
        keys = _row_keys(chosen.seed, rows)
        with self.environment.active():
            caches = self.new_caches(rows, total)
            first, caches = self._prefill(ids, lengths, keys, caches, self.params, first_tokens, sampling=chosen)
            start = LoopState(
                jnp.ones((), jnp.int32),
                first[0],
                jnp.isin(first[0], jnp.asarray(stop_ids, jnp.int32)),
                jnp.zeros((rows, max_tokens), jnp.int32).at[:, 0].set(first[0]),
                jnp.zeros((rows, max_tokens), jnp.float32).at[:, 0].set(first[1]),
                caches,
            )
            ended = self._loop(lengths, keys, start, self.params, sampling=chosen, stop_ids=tuple(stop_ids))
        return _completions(np.asarray(ended.ids), np.asarray(ended.logprobs), set(stop_ids))

    def new_caches(self, rows: int, length: int) -> Any:
        """Returns empty caches for `rows` sequences of at most `length` tokens."""
        spec = self.model.cache_spec(rows, length, self.cache_dtype)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))

    def prefill(
        self,
        ids: Any,
        lengths: Any,
        keys: Any,
        caches: Any,
        params: Any,
        first_tokens: Any = None,
        *,
        sampling: Sampling,
    ) -> tuple[tuple[Array, Array], Any]:
        """Returns the first new token of each row with its log-probability, and the filled caches."""
        # What pads the prompts is marked: a ring or a recurrent state must not take it in.
        ends = lengths[:, None] if lengths.ndim else lengths
        real = jnp.broadcast_to(jnp.arange(ids.shape[1])[None] < ends, ids.shape)
        sequences = Sequences(lengths=jnp.zeros((), jnp.int32), segment_ids=real.astype(jnp.int32))
        (logits, caches), _ = kn.functional(self.model, "decode")(params, self.state, ids, sequences, caches)
        last = lengths[:, None, None] - 1 if lengths.ndim else lengths - 1
        final = (
            jax.lax.dynamic_index_in_dim(logits, last, axis=1, keepdims=False)
            if lengths.ndim == 0
            else jnp.take_along_axis(logits, last, axis=1)[:, 0]
        )
        if first_tokens is not None:
            final = jnp.where(first_tokens, final, -jnp.inf)
        return sample(final, sampling, keys, jnp.zeros((), jnp.int32)), caches

    def decode_loop(
        self,
        lengths: Any,
        keys: Any,
        start: LoopState,
        params: Any,
        *,
        sampling: Sampling,
        stop_ids: tuple[int, ...] = (),
    ) -> LoopState:
        """Returns the loop's last state: every row stopped, or `max_tokens` reached."""
        decode = kn.functional(self.model, "decode")
        stops = jnp.asarray(stop_ids, jnp.int32)

        def going(carry: LoopState) -> Array:
            more = carry.count < carry.ids.shape[1]
            return jnp.logical_and(more, ~jnp.all(carry.done)) if stop_ids else more

        def body(carry: LoopState) -> LoopState:
            sequences = Sequences(lengths=lengths + carry.count - 1)
            (logits, caches), _ = decode(params, self.state, carry.last[:, None], sequences, carry.caches)
            ids, logprobs = sample(logits[:, 0], sampling, keys, carry.count)
            put = jax.lax.dynamic_update_slice_in_dim
            return LoopState(
                carry.count + 1,
                ids,
                jnp.logical_or(carry.done, jnp.isin(ids, stops)) if stop_ids else carry.done,
                put(carry.ids, ids[:, None], carry.count, 1),
                put(carry.logprobs, logprobs[:, None], carry.count, 1),
                caches,
            )

        return jax.lax.while_loop(going, body, start)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [B, padded] and lengths: a scalar where all are equal, which decodes fastest."""
    found = {len(p) for p in prompts}
    width = -(-max(found) // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
    ids = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    if len(found) == 1:
        return ids, np.asarray(found.pop(), np.int32)
    return ids, np.asarray([len(p) for p in prompts], np.int32)


def _row_keys(seed: int, rows: int) -> jax.Array:
    base = jax.random.key(seed, impl="threefry2x32")
    return jax.vmap(lambda row: jax.random.fold_in(base, row))(jnp.arange(rows))


def _completions(ids: np.ndarray, logprobs: np.ndarray, stop: set[int]) -> list[Completion]:
    found = []
    for row, row_logprobs in zip(ids.tolist(), logprobs.tolist(), strict=True):
        end = next((i for i, token in enumerate(row) if token in stop), None)
        kept = len(row) if end is None else end
        reason = "length" if end is None else "stop"
        found.append(Completion(row[:kept], row_logprobs[:kept], reason))
    return found
