"""Generation by filling in: all new tokens are hidden at first, and the surest of them are written step by step."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array
from kanawa.composition.program_traits import for_purpose
from kanawa.contracts import CausalLM, Environment, Sequences
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.engine.sequence import BLOCK, random_block
from kanawa_runtime.serve.generate import Completion, Generator, Sampling, SamplingConfig, TextWriter, sample
from kanawa_runtime.serve.growing_text import prompt_ids

#: Rows are padded to a multiple of this, so that texts of similar length share a program.
_ROW_MULTIPLE = 64


class Unmasker(TextWriter):
    """Fills in with one model whose `hidden_token` is an id; prompts may be empty.

    Blocks of `block_tokens` are filled one after another, by default all at once, in `denoising_steps` over all of
    them, by default one a token. Each step draws every hidden token of the block, and writes those of the highest
    probability (Nie et al. 2025, arXiv:2502.09992, section 2.4). Log-probabilities are those at the step of a token.
    """

    def __init__(
        self,
        model: CausalLM,
        params: Any,
        *,
        state: Any = None,
        environment: Environment | None = None,
        known: np.ndarray | None = None,
    ) -> None:
        """Takes the model and its parameters as they are trained; `known` as of `Generator`."""
        hidden = type(model).hidden_token(model.config)
        if hidden is None:
            message = f"{type(model).__qualname__} hides no tokens; it continues texts"
            raise UsageError(message)
        self.model, self.mask_id = model, hidden
        self.environment = for_purpose(environment or Environment(), "prefill")
        writable = np.ones(model.config.vocab_size, bool)
        if known is not None:
            writable[:] = np.pad(known, (0, writable.size - known.shape[0]))
        writable[hidden] = False
        self._writable = writable
        self._step = jax.jit(self.step, static_argnames=("sampling",))
        self.load(params, state)

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other parameters of the same model; no program is compiled again."""
        self.params, self.state = params, state or {}

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
        """Yields after every `every` steps what no hidden token precedes."""
        assert pictures is None, "a model that fills in reads no pictures; `pictures_of` refuses them"
        asked = (sampling or SamplingConfig()).clone().freeze()
        plan = _steps_of_blocks(max_tokens, asked.denoising_steps, asked.block_tokens)
        if not prompts:
            message = "there are no prompts to fill in after"
            raise UsageError(message)
        ids, segments, places = self._rows(prompts, max_tokens)
        drawing = Sampling(asked.temperature, asked.top_k, asked.top_p)
        logprobs, done = np.zeros(places.shape, np.float32), 0
        for start, end, counts in plan:
            for count in counts:
                uniforms = _uniforms(asked.seed, done, *places.shape) if asked.temperature else np.zeros(places.shape)
                with self.environment.active():
                    ids, logprobs = self._step(
                        self.params, self.state, ids, segments, places, logprobs, uniforms.astype(np.float32),
                        np.asarray([start, end, count], np.int32), sampling=drawing,
                    )  # fmt: skip
                done += 1
                if done % every == 0:
                    yield self._completions(ids, places, logprobs, stop_ids)
            written = np.take_along_axis(np.asarray(ids), places, axis=1)[:, :end]
            # What comes after the end of a text is of no use.
            if stop_ids and np.all(np.any(np.isin(written, list(stop_ids)), axis=1)):
                break
        yield self._completions(ids, places, logprobs, stop_ids)

    def step(
        self,
        params: Any,
        state: Any,
        ids: Any,
        segments: Any,
        places: Any,
        logprobs: Any,
        uniforms: Any,
        block: Any,
        *,
        sampling: Sampling,
    ) -> tuple[Array, Array]:
        """Returns rows with the `block[2]` surest tokens of the new ones from `block[0]` to `block[1]` written."""
        decode = kn.functional(self.model, "decode")
        (logits, _), _ = decode(params, state, ids, Sequences(segment_ids=segments), None, places)
        rows, new, vocab = logits.shape
        logits = jnp.where(self._writable, logits.astype(jnp.float32), -jnp.inf)
        drawn, sure = sample(logits.reshape(rows * new, vocab), sampling, uniforms.reshape(-1))
        drawn, sure = drawn.reshape(rows, new), sure.reshape(rows, new)
        at = jnp.arange(new)[None]
        now = jnp.take_along_axis(jnp.asarray(ids), places, axis=1)
        open_ = (now == self.mask_id) & (at >= block[0]) & (at < block[1])
        order = jnp.argsort(jnp.where(open_, -sure, jnp.inf), axis=1, stable=True)
        chosen = open_ & (jnp.argsort(order, axis=1) < block[2])
        written = jnp.put_along_axis(jnp.asarray(ids), places, jnp.where(chosen, drawn, now), 1, inplace=False)
        return written, jnp.where(chosen, sure, logprobs)

    def _rows(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns ids with hidden tokens after each prompt, their segments, 0 past the end, and the hidden places."""
        longest = max(map(len, prompts)) + max_tokens
        width = -(-longest // _ROW_MULTIPLE) * _ROW_MULTIPLE
        ids, segments = np.zeros((len(prompts), width), np.int32), np.zeros((len(prompts), width), np.int32)
        for row, segment, prompt in zip(ids, segments, prompts, strict=True):
            row[: len(prompt)] = prompt
            row[len(prompt) : len(prompt) + max_tokens] = self.mask_id
            segment[: len(prompt) + max_tokens] = 1
        places = np.array([len(prompt) for prompt in prompts], np.int32)[:, None] + np.arange(
            max_tokens, dtype=np.int32
        )
        return ids, segments, places

    def _completions(self, ids: Any, places: Any, logprobs: Any, stop_ids: Sequence[int]) -> list[Completion]:
        """Returns the tokens of each row that no hidden one precedes, up to the first that stops."""
        completions = []
        new = np.take_along_axis(np.asarray(ids), places, axis=1)
        for row, sure in zip(new, np.asarray(logprobs), strict=True):
            ends = np.isin(row, [self.mask_id, *stop_ids])
            length = int(np.argmax(ends)) if ends.any() else row.size
            stopped = length < row.size and row[length] != self.mask_id
            completions.append(
                Completion(row[:length].tolist(), sure[:length].tolist(), "stop" if stopped else "length")
            )
        return completions


def _steps_of_blocks(tokens: int, steps: int | None, block: int | None) -> list[tuple[int, int, list[int]]]:
    """Returns of each block where it starts and ends, and how many tokens each of its steps writes."""
    size = tokens if block is None else min(block, tokens)
    asked = tokens if steps is None else steps
    starts = range(0, tokens, size) if tokens > 0 else range(0)
    if not len(starts) <= asked <= tokens:
        message = (
            f"denoising_steps is {asked}, expected {len(starts)} to {tokens}: each of {len(starts)} blocks takes one, "
            "and each step writes a token; change denoising_steps, block_tokens or max_tokens"
        )
        raise UsageError(message)
    plan = []
    for number, start in enumerate(starts):
        end = min(start + size, tokens)
        own = asked * (number + 1) // len(starts) - asked * number // len(starts)
        own = min(own, end - start)
        plan.append((start, end, [(end - start) * (i + 1) // own - (end - start) * i // own for i in range(own)]))
    return plan


def _uniforms(seed: int, step: int, rows: int, count: int) -> np.ndarray:
    """Returns the random numbers of one step, [rows, count]; of other steps they are others."""
    blocks = -(-count // BLOCK)
    numbers = range(step * blocks, (step + 1) * blocks)
    return np.stack([np.concatenate([random_block(seed + row, i) for i in numbers])[:count] for row in range(rows)])


def generator_of(
    model: CausalLM, params: Any, state: Any, environment: Environment, known: np.ndarray | None
) -> TextWriter:
    """Returns what generates with a model: by filling in where it hides tokens, else by continuing."""
    kind = Generator if type(model).hidden_token(model.config) is None else Unmasker
    return kind(model, params, state=state, environment=environment, known=known)


def check_sampling(model: CausalLM, sampling: SamplingConfig) -> None:
    """Raises UsageError for settings of filling in where a model continues texts."""
    if type(model).hidden_token(model.config) is None and (sampling.denoising_steps or sampling.block_tokens):
        message = (
            f"denoising_steps and block_tokens are for models that fill in hidden tokens, and {type(model).__name__} "
            "continues texts: leave them out, or train one with --modify masked-diffusion"
        )
        raise UsageError(message)


def prompt_to_fill_after(model: CausalLM, tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns a text's ids as the model is to read them: one that fills in never sees what begins a document."""
    ids = prompt_ids(tokenizer, text)
    fills = type(model).hidden_token(model.config) is not None
    return ids[1:] if fills and ids[0] == tokenizer.bos_id else ids
