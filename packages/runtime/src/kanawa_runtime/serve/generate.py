"""Generation in two compiled programs: prefill the prompts, then one loop that decodes to the end.

Tokens are drawn as the engine draws them: row i of a call with seed s gets those of a request with seed s + i.
"""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.composition.program_traits import for_purpose
from kanawa.config import Config, NonNegative, Range, Seed, Size
from kanawa.contracts import CausalLM, Environment, Sequences
from kanawa.errors import UsageError
from kanawa.local_path import local_path

from kanawa_runtime.runs.imported import outline_of
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.engine.sequence import BLOCK, random_block
from kanawa_runtime.serve.engine.token_sampler import cut_tail, draw_by_sums
from kanawa_runtime.serve.seen_pictures import Seen, seen_pictures
from kanawa_runtime.storage.place import address_of

#: Prompts are padded to a multiple of this, so that prompts of similar length share a compiled prefill.
_PROMPT_MULTIPLE = 64


class SamplingConfig(Config):
    """`temperature` 0 is greedy; `top_k` and `top_p` (None: off) cut the tail before drawing.

    Of a model that fills in hidden tokens: in how many `denoising_steps` (None: one a token), and of how many tokens
    the blocks are that it fills from left to right (None: one block).
    """

    temperature: NonNegative = 0.8
    top_k: Size | None = None
    top_p: Annotated[float, Range(0, 1, above=True)] | None = None
    seed: Seed = 0
    denoising_steps: Size | None = None
    block_tokens: Size | None = None


class Sampling(NamedTuple):
    """The settings that are part of the compiled program."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None


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


class TextWriter(abc.ABC):
    """Writes after prompts with one model, whose parameters may be exchanged."""

    params: Any
    state: Any

    @abc.abstractmethod
    def load(self, params: Any, state: Any = None) -> None:
        """Takes other parameters of the same model; no program is compiled again."""

    def unload(self) -> None:
        """Frees the parameters."""
        self.params, self.state = None, {}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingConfig | None = None,
        stop_ids: Sequence[int] = (),
    ) -> list[Completion]:
        """Returns one completion a prompt; prompts may differ in length. Raises UsageError on prompts it can't take."""
        *_, last = self.stream(prompts, max_tokens, sampling, stop_ids, every=max_tokens)
        return last

    @abc.abstractmethod
    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingConfig | None = None,
        stop_ids: Sequence[int] = (),
        *,
        every: int = 1,
        pictures: Sequence[Sequence[Picture]] | None = None,
    ) -> Iterator[list[Completion]]:
        """Yields what there is of each completion, now and then; the last are those of `generate`.

        `every` is after how many tokens or steps, and changes no token. `pictures` are those of each prompt, which has
        their tokens.
        """


class Generator(TextWriter):
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
        self.known = None if known is None else np.pad(known, (0, model.config.vocab_size - known.shape[0]))
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

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampling: SamplingConfig | None = None,
        stop_ids: Sequence[int] = (),
        *,
        every: int = 1,
        pictures: Sequence[Sequence[Picture]] | None = None,
    ) -> Iterator[list[Completion]]:
        """Yields what there is of each completion after every `every` tokens, by the same compiled loop whatever it is.

        Raises UsageError on an empty prompt.
        """
        if max_tokens < 1 or not prompts or not all(len(p) for p in prompts):
            message = (
                f"generate needs at least one token a prompt and max_tokens >= 1; "
                f"got prompt lengths {[len(p) for p in prompts]} and max_tokens {max_tokens}"
            )
            raise UsageError(message)
        asked = (sampling or SamplingConfig()).clone().freeze()
        chosen = Sampling(asked.temperature, asked.top_k, asked.top_p)
        ids, lengths = _padded(prompts)
        rows, padded = ids.shape
        # Caches are a multiple long as well, or each prompt's length would compile a loop of its own.
        total = -(-(padded + max_tokens) // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
        uniforms = _uniforms(asked.seed, rows, max_tokens)
        with self.environment.active():
            seen = None
            if pictures is not None:
                sizes = [len(prompt) for prompt in prompts]
                seen = seen_pictures(self.model, self.params, self.state, ids, sizes, pictures)
            caches = self.new_caches(rows, total)
            first, caches = self._prefill(
                ids, lengths, uniforms, caches, self.params, self.known, self.state, seen, sampling=chosen
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
                shift = None if seen is None else seen.shift
                arguments = (lengths, uniforms, carry, self.params, np.int32(until), self.known, self.state, shift)
                carry = self._loop(*arguments, sampling=chosen, stop_ids=tuple(stop_ids))
            count, done = int(carry.num_tokens), bool(np.all(np.asarray(carry.done)))
            ids_now, logprobs_now = np.asarray(carry.ids)[:, :count], np.asarray(carry.logprobs)[:, :count]
            yield _completions(ids_now, logprobs_now, set(stop_ids))
            if count >= max_tokens or (stop_ids and done):
                return
            until = min(until + every, max_tokens)

    def new_caches(self, rows: int, length: int) -> Any:
        """Returns empty caches for `rows` sequences of at most `length` tokens."""
        spec = self.model.cache_spec(rows, length, self.cache_dtype)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))

    def prefill(
        self,
        ids: Any,
        lengths: Any,
        uniforms: Any,
        caches: Any,
        params: Any,
        known: Any = None,
        state: Any = None,
        seen: Seen | None = None,
        *,
        sampling: Sampling,
    ) -> tuple[tuple[Array, Array], Any]:
        """Returns the first new token of each row with its log-probability, and the filled caches."""
        # What pads the prompts is marked: a ring or a recurrent state must not take it in.
        ends = lengths[:, None] if lengths.ndim else lengths
        real = jnp.broadcast_to(jnp.arange(ids.shape[1])[None] < ends, ids.shape)
        sequences = Sequences(lengths=jnp.zeros((), jnp.int32), segment_ids=real.astype(jnp.int32))
        sequences = sequences if seen is None else seen.put_into(sequences)
        decode = kn.functional(self.model, "decode")
        (logits, caches), _ = decode(params, state or {}, ids, sequences, caches, lengths - 1)
        return sample(_only(logits[:, 0], known), sampling, uniforms[:, 0]), caches

    def decode_loop(
        self,
        lengths: Any,
        uniforms: Any,
        start: LoopState,
        params: Any,
        until: Any = None,
        known: Any = None,
        state: Any = None,
        shift: Any = None,
        *,
        sampling: Sampling,
        stop_ids: tuple[int, ...] = (),
    ) -> LoopState:
        """Returns the loop's last state: every row stopped, or `until` (by default all) tokens are there.

        `shift`, [B, streams], is added to places where tokens have coordinates.
        """
        decode = kn.functional(self.model, "decode")
        stops = jnp.asarray(stop_ids, jnp.int32)

        def going(carry: LoopState) -> Array:
            more = carry.num_tokens < (carry.ids.shape[1] if until is None else until)
            return jnp.logical_and(more, ~jnp.all(carry.done)) if stop_ids else more

        def body(carry: LoopState) -> LoopState:
            # The cache holds the prompt and all new tokens but the last, which is written now.
            sequences = Sequences(lengths=lengths + carry.num_tokens - 1)
            if shift is not None:
                at = jnp.broadcast_to(lengths + carry.num_tokens - 1, shift.shape[:1])
                sequences = sequences._replace(coordinates=(at[:, None] + shift)[:, None])
            (logits, caches), _ = decode(params, state or {}, carry.last[:, None], sequences, carry.caches)
            # Rows that have stopped continue, as shapes are fixed; `_completions` drops their later tokens.
            uniform = jax.lax.dynamic_index_in_dim(uniforms, carry.num_tokens, axis=1, keepdims=False)
            ids, logprobs = sample(_only(logits[:, 0], known), sampling, uniform)
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


def check_generates(directory: str | Path) -> None:
    """Raises UsageError for a model of another kind, before opening it would ask for data to train it on."""
    # Other libraries' folders lie on this machine.
    stored = None if address_of(str(directory)) else outline_of(local_path(str(directory)))
    kind = None if stored is None else stored.config._target
    if kind is not None and not issubclass(kind, CausalLM):
        message = f"{directory}: {kind.__qualname__} continues no prompt; models that do are CausalLMs"
        raise UsageError(message)


def sample(
    logits: Float[Array, "B V"], sampling: Sampling, uniform: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Returns the chosen ids, int32, and their log-probabilities under the uncut distribution, fp32.

    A row's draw depends on its own random number alone, never on the other rows.
    """
    logits, rows = logits.astype(jnp.float32), logits.shape[0]
    # Static, so that a greedy program draws nothing.
    if sampling.temperature == 0:
        ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    else:
        scaled = logits / sampling.temperature
        if sampling.top_k is not None or sampling.top_p is not None:
            top_k, top_p = jnp.full(rows, sampling.top_k or 0, jnp.int32), jnp.full(rows, sampling.top_p or 1.0)
            scaled = cut_tail(scaled, top_k, top_p, jnp.zeros(rows), jnp.ones(rows, bool))
        ids = draw_by_sums(scaled, uniform)
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    return ids, chosen - jax.nn.logsumexp(logits, axis=-1)


def _only(logits: Float[Array, "B V"], known: Any) -> Float[Array, "B V"]:
    """Returns logits with unknown ids at minus infinity."""
    return logits if known is None else jnp.where(known[None], logits, -jnp.inf)


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


def _uniforms(seed: int, rows: int, count: int) -> np.ndarray:
    """Returns the random numbers that draw each row's tokens, [rows, count]."""
    blocks = range(-(-count // BLOCK))
    return np.stack([np.concatenate([random_block(seed + row, i) for i in blocks])[:count] for row in range(rows)])


def _completions(ids: np.ndarray, logprobs: np.ndarray, stop: set[int]) -> list[Completion]:
    completions = []
    for row, row_logprobs in zip(ids.tolist(), logprobs.tolist(), strict=True):
        end = next((i for i, token in enumerate(row) if token in stop), None)
        length = len(row) if end is None else end
        reason = "length" if end is None else "stop"
        completions.append(Completion(row[:length], row_logprobs[:length], reason))
    return completions
