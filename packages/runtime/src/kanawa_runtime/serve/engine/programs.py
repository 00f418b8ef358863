"""All programs of an engine, compiled before the first request: one for each shape that a step may have."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from kanawa.arrays.shardings import replicated
from kanawa.contracts import CausalLM, Environment, Program

from kanawa_runtime.serve.engine.buckets import at_most, ladder
from kanawa_runtime.serve.engine.choose import Tables
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.paged_model import PagedModel, cache_shardings, empty_caches
from kanawa_runtime.serve.engine.rows import PAGES
from kanawa_runtime.serve.engine.steps import DeviceState, Steps, seat

#: XLA compiles a program on one core for the most part; more threads than these hold more graphs than they save time.
_THREADS = 4


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The ladders: rows of a decoding batch, pages of its longest sequence, tokens of a prompt's chunk."""

    batch_sizes: tuple[int, ...]
    page_widths: tuple[int, ...]
    prefill_sizes: tuple[int, ...]

    @classmethod
    def of(cls, config: EngineConfig, max_length: int, *, has_pages: bool) -> "Shapes":
        """Returns the config's shapes, or those that waste at most half of the rows and three quarters of the pages."""
        pages = -(-max_length // config.page_size) if has_pages else 1
        chunk = min(config.prefill_tokens, -(-max_length // config.page_size) * config.page_size)
        batches = config.batch_sizes or ladder(config.max_sequences, 1, 2)
        widths = config.page_widths or ladder(pages, min(8, pages), 4)
        sizes = config.prefill_sizes or ladder(chunk, config.page_size, 2)
        return cls(at_most(batches, config.max_sequences), at_most(widths, pages), at_most(sizes, chunk))


class Programs:
    """Compiled programs by shape, the parameters they run with, and the device state that passes through them."""

    def __init__(
        self, trained: CausalLM, paged: PagedModel, config: EngineConfig, shapes: Shapes, environment: Environment,
        known: np.ndarray | None,
    ) -> None:  # fmt: skip
        self.shapes, self.paged, self.config, self.environment = shapes, paged, config, environment
        self.vocab = trained.config.vocab_size
        self.details = 2 + 2 * config.max_logprobs
        self._mesh = environment.mesh if isinstance(environment.mesh, Mesh) else None
        self._whole = None if self._mesh is None else replicated(self._mesh)
        self._shardings = self._state_shardings()
        allowed = None if known is None else jnp.asarray(np.pad(known, (0, self.vocab - known.shape[0])))
        self._steps = Steps(
            paged.model,
            has_slots=paged.has_slots,
            known=allowed,
            num_logprobs=config.max_logprobs,
            fused_steps=config.fused_steps,
        )
        self._unstacked = paged.model.unstacked
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.params: Any = None
        self.model_state: Any = {}
        self.state: DeviceState | None = None
        #: A mask that allows everything, [batch, words], for each batch: most steps need none.
        self.no_masks: dict[int, jax.Array] = {}

    @property
    def count(self) -> int:
        """How many programs there are."""
        return len(self._compiled)

    def load(self, params: Any, model_state: Any = None) -> None:
        """Takes parameters as they are trained, of the same shapes and places as any before."""
        with self.environment.active():
            self.params = self._unstack(params)
        if model_state is not None:
            self.model_state = model_state

    def _unstack(self, params: Any) -> Any:
        key = ("unstack",)
        if key not in self._compiled:
            self._compiled[key] = jax.jit(self._unstacked).lower(params).compile()
        return self._compiled[key](params)

    def compile(self) -> None:
        """Compiles everything and makes the empty state; `load` comes first."""
        with self.environment.active():
            self.state = self._empty_state()
            words = -(-self.vocab // 32)
            for rows in {1, *self.shapes.batch_sizes}:
                everything = np.full((rows, words), -1, np.int32)
                self.no_masks[rows] = jax.device_put(everything, self._whole)
        wanted = self._wanted()
        with ThreadPoolExecutor(_THREADS) as pool:
            compiled = pool.map(lambda program: program.lower().compile(), wanted.values())
            self._compiled.update(zip(wanted, compiled, strict=True))

    def decode(self, packed: np.ndarray, width: int, steps: int, flags: int, mask: Any = None) -> tuple[Any, Any]:
        """Runs decoding on packed rows; returns ids [K, B] and their details, still being computed."""
        rows = packed.shape[0]
        program = self._compiled["decode", rows, width]
        masks = self.no_masks[rows] if mask is None else mask
        arguments = (packed, np.int32(steps), np.int32(flags), masks)
        self.state, ids, details = program(self.params, self.model_state, self.state, *arguments)
        return ids, details

    def prefill(self, packed: np.ndarray, ids: np.ndarray, flags: int, mask: Any = None) -> tuple[Any, Any]:
        """Runs a chunk of one row's prompt; returns as `decode` does."""
        program = self._compiled["prefill", ids.shape[1], packed.shape[1] - PAGES]
        masks = self.no_masks[packed.shape[0]] if mask is None else mask
        self.state, chosen, details = program(
            self.params, self.model_state, self.state, packed, ids, np.int32(flags), masks
        )
        return chosen, details

    def score(self, packed: np.ndarray, ids: np.ndarray, flags: int, mask: Any = None) -> tuple[Any, Any, Any]:
        """Runs a chunk of one row's prompt and tells of each of its tokens."""
        program = self._compiled["score", ids.shape[1] - 1, packed.shape[1] - PAGES]
        masks = self.no_masks[packed.shape[0]] if mask is None else mask
        self.state, chosen, details, told = program(
            self.params, self.model_state, self.state, packed, ids, np.int32(flags), masks
        )
        return chosen, details, told

    def seat(self, slot: int, counts: np.ndarray, in_prompt: np.ndarray, bias: np.ndarray) -> None:
        """Sets the tables of a slot."""
        self.state = self._compiled["seat",](self.state, np.int32(slot), counts, in_prompt, bias)

    def _wanted(self) -> Mapping[tuple[Any, ...], Program]:
        shapes, steps = self.shapes, self._steps
        wanted: dict[tuple[Any, ...], Program] = {}
        for rows, width in itertools.product(shapes.batch_sizes, shapes.page_widths):
            rest = (self._abstract((rows, PAGES + width)), self._abstract(()), self._abstract(()), self._mask(rows))
            wanted["decode", rows, width] = self._program(f"decode {rows}x{width}", steps.decode, rest, 2)
        widest = shapes.page_widths[-1]
        for tokens, width in itertools.product(shapes.prefill_sizes, shapes.page_widths):
            # A chunk fills so many pages itself.
            if width < widest and width * self.config.page_size < tokens:
                continue
            rest = self._chunk(width, tokens)
            wanted["prefill", tokens, width] = self._program(f"prefill {tokens}x{width}", steps.prefill, rest, 2)
        if self.config.prompt_logprobs:
            # One shape for all: these are rare, and whoever asks for them doesn't wait for a first token.
            tokens = shapes.prefill_sizes[-1]
            wanted["score", tokens, widest] = self._program("score", steps.score, self._chunk(widest, tokens + 1), 3)
        row = tuple(self._abstract((self.vocab,), dtype) for dtype in (jnp.int32, jnp.bool, jnp.float32))
        arguments = (_abstract_of(self.state), self._abstract(()), *row)
        wanted["seat",] = self._made("seat", seat, arguments, (0,), self._shardings)
        return wanted

    def _chunk(self, width: int, tokens: int) -> tuple[Any, ...]:
        return (self._abstract((1, PAGES + width)), self._abstract((1, tokens)), self._abstract(()), self._mask(1))

    def _program(self, name: str, function: Callable[..., Any], rest: tuple[Any, ...], results: int) -> Program:
        arguments = tuple(_abstract_of(tree) for tree in (self.params, self.model_state, self.state))
        out = None if self._whole is None else (self._shardings, *(self._whole,) * results)
        return self._made(name, function, (*arguments, *rest), (2,), out)

    def _made(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], donate: tuple[int, ...], out: Any
    ) -> Program:
        out = None if self._whole is None else out
        # Bound methods of one object are one function to jit's cache, as they should be; names are for people.
        return Program(name, function, arguments, donate, out, self.environment)

    def _abstract(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._whole)

    def _mask(self, rows: int) -> jax.ShapeDtypeStruct:
        return self._abstract((rows, -(-self.vocab // 32)))

    def _state_shardings(self) -> Any:
        if self._whole is None:
            return None
        caches = cache_shardings(self.paged.cache_spec, self.environment)
        return DeviceState(caches, self._whole, Tables(self._whole, self._whole, self._whole))

    def _empty_state(self) -> DeviceState:
        slots = self.config.max_sequences + 1
        zeros = lambda dtype, *shape: jnp.zeros(shape, dtype, device=self._whole)  # noqa: E731
        tables = Tables(
            zeros(jnp.int32, slots, self.vocab),
            zeros(jnp.bool, slots, self.vocab),
            zeros(jnp.float32, slots, self.vocab),
        )
        caches = empty_caches(self.paged.cache_spec, cache_shardings(self.paged.cache_spec, self.environment))
        return DeviceState(caches, zeros(jnp.int32, slots), tables)


def _abstract_of(tree: Any) -> Any:
    def one(x: Any) -> jax.ShapeDtypeStruct:
        # Only a mesh's shardings are part of a program; one device is wherever its arguments are.
        sharding = getattr(x, "sharding", None)
        named = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named)

    return jax.tree.map(one, tree)
