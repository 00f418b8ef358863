"""Generation in two compiled programs: prefill the prompts, then one loop that decodes to the end."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.composition.program_traits import for_purpose
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

    num_tokens: Int[Array, ""]
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
        known: np.ndarray | None = None,
    ) -> None:
        """Takes a causal model and its parameters as they are trained.

        `known`, bool of at most the model's vocabulary, says which ids the tokenizer has: a model's vocabulary is
        often padded to a round number, and a padded id, which has no text, must never be drawn.
        """
        self.model = model
        self.environment = for_purpose(environment or Environment(), "prefill")
        self._decoding = for_purpose(self.environment, "decode")
        self.cache_dtype = cache_dtype
        self.known = known
        # Layers are unstacked once: a loop over stacked ones slices all their weights for every token.
        self._unstack = jax.jit(model.unstacked)
        self.load(params, state)
        # Caches are donated: two copies of a long context's would not fit.
        self._prefill = jax.jit(self.prefill, static_argnames=("sampling",), donate_argnums=3)
        self._loop = jax.jit(self.decode_loop, static_argnames=("sampling", "stop_ids"), donate_argnums=2)

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other parameters of the same model; no program is compiled again."""
        self.state = state or {}
        with self.environment.active():
            self.params = self._unstack(params)

    def unload(self) -> None:
        """Frees the parameters, which are a copy where layers were stacked."""
        self.params, self.state = None, {}

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
        *_, last = self.stream(prompts, max_tokens, sampling, stop_ids, first_tokens, every=max_tokens)
        return last

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingConfig | None = None,
        stop_ids: Sequence[int] = (),
        first_tokens: np.ndarray | None = None,
        *,
        every: int = 1,
    ) -> Iterator[list[Completion]]:
        """Yields what there is of each completion after every `every` tokens; the last are those of `generate`.

        The compiled loop is the same whatever `every` is, and so are the tokens.
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
        # Caches are a multiple long as well, or each prompt's length would compile a loop of its own.
        total = -(-(padded + max_tokens) // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
        keys = _row_keys(chosen.seed, rows)
        known = self._over_vocabulary(self.known)
        allowed = self._over_vocabulary(first_tokens)
        if known is not None and allowed is not None:
            allowed &= known
        first_allowed = known if allowed is None else allowed
        with self.environment.active():
            caches = self.new_caches(rows, total)
            first, caches = self._prefill(
                ids, lengths, keys, caches, self.params, first_allowed, self.state, sampling=chosen
            )
            carry = LoopState(
                # The prefill has made the first token.
                jnp.ones((), jnp.int32),
                first[0],
                jnp.isin(first[0], jnp.asarray(stop_ids, jnp.int32)),
                jnp.zeros((rows, max_tokens), jnp.int32).at[:, 0].set(first[0]),
                jnp.zeros((rows, max_tokens), jnp.float32).at[:, 0].set(first[1]),
                caches,
            )
        until = min(every, max_tokens)
        while True:
            # The plan is active only while a program runs: between two pieces the caller's own code does.
            with self._decoding.active():
                # `until` is an argument of the program, not a constant of it: another one must not compile anew.
                arguments = (lengths, keys, carry, self.params, np.int32(until), known, self.state)
                carry = self._loop(*arguments, sampling=chosen, stop_ids=tuple(stop_ids))
            count, done = int(carry.num_tokens), bool(np.all(np.asarray(carry.done)))
            ids_now, logprobs_now = np.asarray(carry.ids)[:, :count], np.asarray(carry.logprobs)[:, :count]
            yield _completions(ids_now, logprobs_now, set(stop_ids))
            if count >= max_tokens or (stop_ids and done):
                return
            until = min(until + every, max_tokens)

    def _over_vocabulary(self, allowed: np.ndarray | None) -> np.ndarray | None:
        """Returns the mask over the model's whole vocabulary: what a tokenizer doesn't reach isn't allowed."""
        if allowed is None:
            return None
        rest = self.model.config.vocab_size - allowed.shape[-1]
        return np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, rest)])

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
        state: Any = None,
        *,
        sampling: Sampling,
    ) -> tuple[tuple[Array, Array], Any]:
        """Returns the first new token of each row with its log-probability, and the filled caches."""
        # What pads the prompts is marked: a ring or a recurrent state must not take it in.
        ends = lengths[:, None] if lengths.ndim else lengths
        real = jnp.broadcast_to(jnp.arange(ids.shape[1])[None] < ends, ids.shape)
        sequences = Sequences(lengths=jnp.zeros((), jnp.int32), segment_ids=real.astype(jnp.int32))
        decode = kn.functional(self.model, "decode")
        (logits, caches), _ = decode(params, state or {}, ids, sequences, caches, lengths - 1)
        return sample(_only(logits[:, 0], first_tokens), sampling, keys, jnp.zeros((), jnp.int32)), caches

    def decode_loop(
        self,
        lengths: Any,
        keys: Any,
        start: LoopState,
        params: Any,
        until: Any = None,
        known: Any = None,
        state: Any = None,
        *,
        sampling: Sampling,
        stop_ids: tuple[int, ...] = (),
    ) -> LoopState:
        """Returns the loop's last state: every row stopped, or `until` (by default all) tokens are there."""
        decode = kn.functional(self.model, "decode")
        stops = jnp.asarray(stop_ids, jnp.int32)

        def going(carry: LoopState) -> Array:
            more = carry.num_tokens < (carry.ids.shape[1] if until is None else until)
            return jnp.logical_and(more, ~jnp.all(carry.done)) if stop_ids else more

        def body(carry: LoopState) -> LoopState:
            # The cache holds the prompt and all new tokens but the last, which is written now.
            sequences = Sequences(lengths=lengths + carry.num_tokens - 1)
            (logits, caches), _ = decode(params, state or {}, carry.last[:, None], sequences, carry.caches)
            # Rows that have stopped continue, as shapes are fixed; `_completions` drops their later tokens.
            ids, logprobs = sample(_only(logits[:, 0], known), sampling, keys, carry.num_tokens)
            put = jax.lax.dynamic_update_slice_in_dim
            return LoopState(
                carry.num_tokens + 1,
                ids,
                jnp.logical_or(carry.done, jnp.isin(ids, stops)) if stop_ids else carry.done,
                put(carry.ids, ids[:, None], carry.num_tokens, 1),
                put(carry.logprobs, logprobs[:, None], carry.num_tokens, 1),
                caches,
            )

        return jax.lax.while_loop(going, body, start)


def _only(logits: Float[Array, "B V"], allowed: Any) -> Float[Array, "B V"]:
    """Returns logits with what isn't allowed, bool [V] or [B, V], at minus infinity."""
    return logits if allowed is None else jnp.where(jnp.broadcast_to(allowed, logits.shape), logits, -jnp.inf)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids [B, padded] and lengths: a scalar where all are equal, which decodes fastest."""
    sizes = {len(p) for p in prompts}
    width = -(-max(sizes) // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
    ids = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    if len(sizes) == 1:
        return ids, np.asarray(sizes.pop(), np.int32)
    return ids, np.asarray([len(p) for p in prompts], np.int32)


def _row_keys(seed: int, rows: int) -> jax.Array:
    # Named: another jax_default_prng_impl must not change a seed's tokens.
    base = jax.random.key(seed, impl="threefry2x32")
    return jax.vmap(lambda row: jax.random.fold_in(base, row))(jnp.arange(rows))


def _completions(ids: np.ndarray, logprobs: np.ndarray, stop: set[int]) -> list[Completion]:
    completions = []
    for row, row_logprobs in zip(ids.tolist(), logprobs.tolist(), strict=True):
        end = next((i for i, token in enumerate(row) if token in stop), None)
        length = len(row) if end is None else end
        reason = "length" if end is None else "stop"
        completions.append(Completion(row[:length], row_logprobs[:length], reason))
    return completions
