"""The compiled programs of speculation, beside an engine's own and over the same pages."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from kanawa.contracts import CausalLM, Program
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.paged_model import cache_shardings, empty_caches, paged_model
from kanawa_runtime.serve.engine.programs import Programs, abstract_of
from kanawa_runtime.serve.engine.rows import LOGPROBS, PAGES
from kanawa_runtime.serve.engine.verify import Guesser, verify


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
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
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
        self._guesser = Guesser(self._paged.model, programs.known, vocab)
        self._shardings = cache_shardings(self._paged.cache_spec, environment)
        with environment.active():
            self._params = jax.jit(self._paged.model.unstacked)(draft.params)

    @property
    def has_draft(self) -> bool:
        """Whether a model guesses."""
        return self._draft is not None

    def compile(self) -> dict[tuple[Any, ...], Program]:
        """Returns the programs to compile, after making the draft's empty caches; for `set_compiled`."""
        if self._draft is not None:
            with self.programs.environment.active():
                self._caches = empty_caches(self._paged.cache_spec, self._shardings)
        return self._wanted()

    def set_compiled(self, compiled: Mapping[tuple[Any, ...], Callable[..., Any]]) -> None:
        """Takes the compiled programs."""
        self._compiled = dict(compiled)

    def prefill(self, packed: np.ndarray, ids: np.ndarray) -> None:
        """Prefills a chunk of a prompt in the draft model."""
        if self._draft is not None:
            program = self._compiled["draft prefill", *ids.shape, packed.shape[1] - PAGES]
            self._caches = program(self._params, self._draft.state or {}, self._caches, packed, ids)

    def verify(self, packed: np.ndarray, guesses: np.ndarray, uniforms: np.ndarray, flags: int) -> tuple[Any, Any]:
        """Returns the tokens gained [T, B], and their details, None if no row needs them."""
        programs, shape = self.programs, (packed.shape[0], packed.shape[1] - PAGES)
        bits: Any = np.int32(flags)
        guessed: Any = guesses
        if self._draft is not None:
            program = self._compiled["guess", *shape]
            state = self._draft.state or {}
            self._caches, guessed = program(self._params, state, self._caches, packed, programs.kv.last, uniforms, bits)
        program = self._compiled["verify", *shape]
        programs.kv, gained, details = program(
            programs.params, programs.model_state, programs.kv, packed, guessed, uniforms, bits
        )
        return gained, details if flags & LOGPROBS else None

    def _wanted(self) -> dict[tuple[Any, ...], Program]:
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
                    f"guess {rows}x{width}", self._guesser.guess, arguments, (2,), out, programs.environment
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
                self._guesser.prefill,
                arguments,
                (2,),
                out,
                programs.prefill_environment,
            )
        return wanted

    def _own(self) -> tuple[Any, ...]:
        state = {} if self._draft is None else self._draft.state or {}
        return tuple(abstract_of(tree) for tree in (self._params, state, self._caches))
