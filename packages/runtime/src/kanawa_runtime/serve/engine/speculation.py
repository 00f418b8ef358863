"""The compiled programs of speculation, beside an engine's own and over the same pages."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.contracts import CausalLM, Program
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.paged_model import cache_shardings, empty_caches, paged_model
from kanawa_runtime.serve.engine.programs import Programs, abstract_of
from kanawa_runtime.serve.engine.rows import LOGPROBS, PAGES, Rows, unpacked
from kanawa_runtime.serve.engine.steps import KVState, Steps
from kanawa_runtime.serve.engine.token_sampler import SamplingTables, sample_tokens


@dataclasses.dataclass(frozen=True)
class Draft:
    """A small model that guesses for a large one with the same vocabulary; parameters as it was trained with."""

    model: CausalLM
    params: Any
    state: Any = None


class Speculation:
    """Verifies the guesses of a step; makes them too where there is a draft model."""

    def __init__(self, programs: Programs, config: EngineConfig, max_length: int, draft: Draft | None) -> None:
        """Raises UsageError for models that can't drop tokens, and a draft of another vocabulary or length."""
        self.programs, self.count = programs, config.speculative_tokens
        if programs.paged.has_slots:
            message = (
                "this model can't speculate: some of its layers have a state of the whole sequence, which can't "
                "drop wrong guesses; set speculative_tokens=0"
            )
            raise UsageError(message)
        self._draft = draft
        if draft is not None:
            self._take_draft(draft, config, max_length)

    def _take_draft(self, draft: Draft, config: EngineConfig, max_length: int) -> None:
        programs, vocab = self.programs, draft.model.config.vocab_size
        if vocab != programs.vocab:
            message = f"the draft model has {vocab} ids, and the model {programs.vocab}: both must have one vocabulary"
            raise UsageError(message)
        longest = draft.model.longest_sequence()
        if longest is not None and longest < max_length:
            message = f"the draft model has positions for {longest} tokens, and sequences have up to {max_length}"
            raise UsageError(message)
        # A page for each of the model's, so that one table serves both, and shared prefixes are shared by both.
        sized = config.clone().set(num_pages=programs.paged.num_pages)
        environment = programs.environment
        dtype = config.cache_dtype or environment.plan.precision.compute
        self._paged = paged_model(draft.model, sized, max_length, dtype)
        if self._paged.has_slots:
            message = "the draft model has a state of the whole sequence, which can't drop tokens; choose another"
            raise UsageError(message)
        #: Its cache has a page wherever the model's has one.
        self._steps = Steps(
            self._paged.model, has_slots=False, known=programs.steps.known, num_logprobs=0, fused_steps=1
        )
        self._shardings = cache_shardings(self._paged.cache_spec, environment)
        with environment.active():
            self._params, self._state = jax.jit(self._paged.model.unstacked)(draft.params), draft.state or {}
        self._caches: Any = None

    def prefill(self, packed: np.ndarray, ids: np.ndarray) -> None:
        """Prefills a chunk of a prompt in the draft model."""
        if self._draft is not None:
            program = self.programs.compiled["draft prefill", *ids.shape, packed.shape[1] - PAGES]
            self._caches = program(self._params, self._state, self._caches, packed, ids)

    def verify(self, packed: np.ndarray, guesses: np.ndarray, uniforms: np.ndarray, flags: int) -> tuple[Any, Any]:
        """Returns the tokens gained [T, B], and their details, None if no row needs them."""
        programs, shape = self.programs, (packed.shape[0], packed.shape[1] - PAGES)
        bits: Any = np.int32(flags)
        guessed: Any = guesses
        if self._draft is not None:
            program = self.programs.compiled["guess", *shape]
            last = programs.kv.last
            self._caches, guessed = program(self._params, self._state, self._caches, packed, last, uniforms, bits)
        program = self.programs.compiled["verify", *shape]
        programs.kv, gained, details = program(
            programs.params, programs.model_state, programs.kv, packed, guessed, uniforms, bits
        )
        return gained, details if flags & LOGPROBS else None

    def wanted(self) -> dict[tuple[Any, ...], Program]:
        """Returns the programs to compile, after making the draft's empty caches."""
        if self._draft is not None:
            with self.programs.environment.active():
                self._caches = empty_caches(self._paged.cache_spec, self._shardings)
        programs, shapes, abstract = self.programs, self.programs.shapes, self.programs.abstract
        wanted: dict[tuple[Any, ...], Program] = {}
        one, whole = abstract(()), programs.whole
        results = None if whole is None else (programs.shardings, whole, whole)
        model = tuple(abstract_of(tree) for tree in (programs.params, programs.model_state, programs.kv))
        step = functools.partial(verify, programs.steps)
        for rows, width in itertools.product(shapes.batch_sizes, shapes.page_widths):
            packed, uniforms = abstract((rows, PAGES + width)), abstract((rows, 1 + self.count))
            arguments = (*model, packed, abstract((rows, self.count)), uniforms, one)
            wanted["verify", rows, width] = Program(
                f"verify {rows}x{width}", step, arguments, (2,), results, programs.environment
            )
            if self._draft is not None:
                arguments = (*self._own(), packed, abstract_of(programs.kv.last), uniforms, one)
                out = None if whole is None else (self._shardings, whole)
                wanted["guess", rows, width] = Program(
                    f"guess {rows}x{width}",
                    functools.partial(guess, self._steps),
                    arguments,
                    (2,),
                    out,
                    programs.environment,
                )
        return wanted | (self._wanted_chunks() if self._draft is not None else {})

    def _wanted_chunks(self) -> dict[tuple[Any, ...], Program]:
        programs = self.programs
        out = None if programs.whole is None else self._shardings
        wanted: dict[tuple[Any, ...], Program] = {}
        for rows, tokens, width in programs.chunk_shapes():
            arguments = (*self._own(), programs.abstract((rows, PAGES + width)), programs.abstract((rows, tokens)))
            wanted["draft prefill", rows, tokens, width] = Program(
                f"draft prefill {rows}x{tokens}x{width}",
                functools.partial(prefill_draft, self._steps),
                arguments,
                (2,),
                out,
                programs.prefill_environment,
            )
        return wanted

    def _own(self) -> tuple[Any, ...]:
        return tuple(abstract_of(tree) for tree in (self._params, self._state, self._caches))


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


def guess(
    steps: Steps,
    params: Any,
    model_state: Any,
    caches: Any,
    packed: Int[Array, "B columns"],
    last: Int[Array, " S"],
    uniforms: Int[Array, "B T"],
    flags: Int[Array, ""],
) -> tuple[Any, Int[Array, "B K"]]:
    """Returns a draft model's caches and K guesses a row; feeds the last guess too, which may turn out right."""
    rows, (count, length) = unpacked(packed), uniforms.shape
    floats = _floats(uniforms)

    def body(step: Array, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        caches, token, guesses = carry
        one = rows._replace(length=rows.length + step, num_tokens=(step < rows.num_tokens).astype(jnp.int32))
        logits, caches = steps.logits_of(params, model_state, caches, one, token[:, None])
        mask = jnp.full((count, -(-logits.shape[-1] // 32)), -1, jnp.int32)
        own = rows._replace(uniform=floats[:, step])
        token = sample_tokens(logits[:, 0], own, _no_tables(), flags & ~LOGPROBS, mask, num_logprobs=0).ids
        # The last one is past the end, and dropped.
        return caches, token, guesses.at[:, step].set(token, mode="drop")

    guesses = jnp.zeros((count, length - 1), jnp.int32)
    caches, _, guesses = jax.lax.fori_loop(0, length, body, (caches, last[rows.slot], guesses))
    return caches, guesses


def prefill_draft(steps: Steps, params: Any, model_state: Any, caches: Any, packed: Array, ids: Array) -> Any:
    """Returns a draft model's caches with a chunk of a prompt."""
    return steps.logits_of(params, model_state, caches, unpacked(packed), ids)[1]


def _each_token(rows: Rows, length: int) -> Rows:
    """Returns the rows, each repeated for every one of its tokens."""
    return Rows(*(jnp.repeat(column, length, axis=0) for column in rows))


def _floats(bits: Int[Array, "B T"]) -> Float[Array, "B T"]:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _no_tables() -> SamplingTables:
    # Requests with penalties or biases are decoded a token at a time: what they ask for depends on each token before.
    return SamplingTables(jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.bool), jnp.zeros((1, 1), jnp.float32))
