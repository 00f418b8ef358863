"""The compiled programs of an engine, made before the first request: one for each shape that a step may have."""

import dataclasses
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from kanawa.arrays.shardings import replicated
from kanawa.composition.fused import fuse_params
from kanawa.composition.plain import in_forms
from kanawa.composition.program_traits import for_purpose
from kanawa.contracts import CausalLM, Environment, Program
from kanawa.kernels.matmul import preferred_weight_layout

from kanawa_runtime.serve.engine.cast_once import cast_params, read_as
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.output_first import OutputFirst
from kanawa_runtime.serve.engine.paged_model import PagedModel, cache_shardings, empty_caches
from kanawa_runtime.serve.engine.rows import PAGES
from kanawa_runtime.serve.engine.shapes import Shapes
from kanawa_runtime.serve.engine.steps import KVState, Steps, write_sampling_rows
from kanawa_runtime.serve.engine.token_sampler import SamplingTables

#: XLA compiles a program on one core for the most part; more threads than these hold more graphs than they save time.
_THREADS = 4


class Extension(Protocol):
    """Programs beside the engine's own, over the same device state."""

    def wanted(self) -> Mapping[tuple[Any, ...], Program]:
        """Returns the programs to compile; `Programs.compiled` has them afterwards, by the same keys."""


class Programs:
    """Compiled programs by shape, the parameters they run with, and the device state that passes through them."""

    def __init__(
        self, trained: CausalLM, paged: PagedModel, config: EngineConfig, shapes: Shapes, environment: Environment,
        known: np.ndarray | None,
    ) -> None:  # fmt: skip
        self.shapes, self.paged, self.config, self.environment = shapes, paged, config, environment
        self.prefill_environment = for_purpose(environment, "prefill")
        self.vocab = trained.config.vocab_size
        self.num_logprobs = min(config.max_logprobs, self.vocab)
        mesh = environment.mesh
        self.whole: Any = replicated(mesh) if isinstance(mesh, Mesh) else None
        self._cache_shardings = cache_shardings(paged.cache_spec, environment)
        whole: Any = self.whole
        self.shardings = KVState(self._cache_shardings, whole)
        #: Verifies guesses of several tokens; set before anything is compiled.
        self.speculation: Any = None
        #: Encodes pictures, of a model that reads them; set before parameters are loaded.
        self.tower: Any = None
        self.extensions: list[Extension] = []
        allowed = None if known is None else jnp.asarray(np.pad(known, (0, self.vocab - known.shape[0])))
        self.steps = Steps(
            paged.model,
            has_slots=paged.has_slots,
            known=allowed,
            num_logprobs=self.num_logprobs,
            fused_steps=config.fused_steps,
            has_adapters=config.adapter_slots > 0,
            noisy_draws=config.noisy_draws,
        )
        self._trained = trained
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        #: From parameters as they are trained to those here, and the shapes and places of the first.
        self._ready: Callable[[Any], Any] = lambda params: params
        self._taken: Any = None
        self.params: Any = None
        self.model_state: Any = {}
        self.kv: Any = None
        self.tables: Any = None
        #: A mask that allows everything, [batch, words], for each batch: most steps need none.
        self._no_masks: dict[int, jax.Array] = {}

    @property
    def count(self) -> int:
        """How many programs there are."""
        return len(self.compiled)

    def load(self, params: Any, model_state: Any = None) -> None:
        """Takes parameters as they are trained, of the same shapes as any before; they stay the caller's.

        They are moved to the devices of the first ones. After compilation, new weights reuse the old buffers.
        """
        if model_state is not None:
            self.model_state = model_state
        with self.environment.active():
            self.params = self._unstack(params)

    def _unstacked(self, params: Any) -> Any:
        params = fuse_params(self._trained, params) if self.paged.outputs_first else params
        return self.paged.model.unstacked(in_forms(self.paged.model, params, OutputFirst))

    def _unstack(self, params: Any) -> Any:
        key = ("unstack",)
        if key not in self.compiled:
            params = jax.device_put(params)
            dtype = self.environment.plan.precision.compute
            which = self._read_in(dtype, params)
            self._ready = lambda params: cast_params(self._unstacked(params), which, dtype)
            self.compiled[key] = jax.jit(self._ready).lower(params).compile()
            self._taken = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
        else:
            params = jax.tree.map(lambda x, first: jax.device_put(x, first.sharding), params, self._taken)
        in_place = self.compiled.get(("reload",))
        return self.compiled[key](params) if in_place is None else in_place(self.params, params)

    def _in_place(self) -> Callable[..., Any]:
        """Returns the program that writes parameters over the old ones: two copies might not fit beside a trainer."""
        placed = jax.tree.map(lambda x: x.sharding, self.params)
        ready = jax.jit(
            lambda before, params: self._ready(params), donate_argnums=0, keep_unused=True, out_shardings=placed
        )
        with self.environment.active():
            return ready.lower(self.params, self._taken).compile()

    def _read_in(self, dtype: str, params: Any) -> Any:
        """Returns which parameters are read in the computing dtype only."""
        unstacked = jax.eval_shape(self._unstacked, params)
        if dtype == "float32":
            return jax.tree.map(lambda _: False, unstacked)
        kv, tokens = jax.eval_shape(lambda: self._empty()[0]), self.shapes.prefill_sizes[0]
        packed = self.abstract((1, PAGES + self.shapes.page_widths[-1]))
        rest = (self.model_state, kv, packed, self.abstract((1, tokens)), *self._seen(unstacked, 1, tokens))
        return read_as(self.steps.prefill, unstacked, rest, dtype)

    def compile(self) -> None:
        """Compiles everything and makes the empty state; `load` comes first."""
        with self.environment.active():
            self.kv, self.tables = self._empty()
            words = -(-self.vocab // 32)
            decoded = () if self.config.draws_only else self.shapes.batch_sizes
            for rows in {*self.shapes.prefill_rows, *decoded}:
                everything = np.full((rows, words), -1, np.int32)
                self._no_masks[rows] = jax.device_put(everything, self.whole)
        wanted = dict(self._wanted())
        for extension in self.extensions:
            wanted |= extension.wanted()
        with ThreadPoolExecutor(_THREADS) as pool:
            compiled = pool.map(lambda program: program.lower().compile(), wanted.values())
            self.compiled.update(zip(wanted, compiled, strict=True))
        self.compiled["reload",] = self._in_place()

    def decode(self, packed: np.ndarray, steps: int) -> tuple[Any, Any]:
        """Runs decoding on packed rows; returns the likeliest ids [K, B] and the last logits, still being computed."""
        program = self.compiled["decode", packed.shape[0], packed.shape[1] - PAGES]
        self.kv, ids, logits = program(self.params, self.model_state, self.kv, packed, np.int32(steps))
        return ids, logits

    def draw(self, packed: np.ndarray, uniforms: np.ndarray, steps: int, flags: int) -> tuple[Any, Any]:
        """Runs decoding with draws on packed rows; returns ids [K, B] and their details, still being computed."""
        program = self.compiled["draw", packed.shape[0], packed.shape[1] - PAGES]
        rest = (packed, uniforms, np.int32(steps), np.int32(flags))
        self.kv, ids, details = program(self.params, self.model_state, self.kv, *rest)
        return ids, details

    def prefill(self, packed: np.ndarray, ids: np.ndarray, seen: tuple[Any, ...] = ()) -> tuple[Any, Any]:
        """Runs a chunk of each row's prompt; returns as `decode` does. `seen` is the tower's (`PictureTower.see`)."""
        if self.speculation is not None:
            self.speculation.prefill(packed, ids)
        program = self.compiled["prefill", *ids.shape, packed.shape[1] - PAGES]
        self.kv, chosen, logits = program(self.params, self.model_state, self.kv, packed, ids, *seen)
        return chosen, logits

    def score(self, packed: np.ndarray, ids: np.ndarray, seen: tuple[Any, ...] = ()) -> tuple[Any, Any, Any]:
        """Runs a chunk of each row's prompt; returns the log-probabilities of all tokens too."""
        if self.speculation is not None:
            self.speculation.prefill(packed, ids[:, :-1])
        program = self.compiled["score", ids.shape[0], ids.shape[1] - 1, packed.shape[1] - PAGES]
        self.kv, chosen, logits, details = program(self.params, self.model_state, self.kv, packed, ids, *seen)
        return chosen, logits, details

    def sample(self, packed: np.ndarray, logits: Any, flags: int, mask: np.ndarray | None) -> tuple[Any, Any]:
        """Draws from the logits of the step before; returns ids [1, B] and their details."""
        rows = packed.shape[0]
        masks = self._no_masks[rows] if mask is None else mask
        last, self.tables, ids, details = self.compiled["sample", rows](
            self.kv.last, self.tables, packed[:, :PAGES], logits, np.int32(flags), masks
        )
        self.kv = self.kv._replace(last=last)
        return ids, details

    def write_sampling_rows(self, slot: int, counts: np.ndarray, in_prompt: np.ndarray, bias: np.ndarray) -> None:
        """Replaces the sampling tables' rows of a slot."""
        self.tables = self.compiled["sampling rows",](self.tables, np.int32(slot), counts, in_prompt, bias)

    def _wanted(self) -> Mapping[tuple[Any, ...], Program]:
        shapes, steps, prefilling = self.shapes, self.steps, self.prefill_environment
        wanted: dict[tuple[Any, ...], Program] = {}
        function: Callable[..., Any]
        rest: tuple[Any, ...]
        for rows, width in itertools.product(shapes.batch_sizes, shapes.page_widths):
            kind, function = ("draw", steps.draw) if self.config.draws_only else ("decode", steps.decode)
            number = self.abstract(())
            # Random numbers, and flags.
            drawn = (self.abstract((self.config.fused_steps, rows)), number, number)
            rest = (self.abstract((rows, PAGES + width)), *(drawn if self.config.draws_only else (number,)))
            wanted[kind, rows, width] = self._program(f"{kind} {rows}x{width}", function, rest, 2, self.environment)
        widest = shapes.page_widths[-1]
        for rows, tokens, width in self.chunk_shapes():
            rest = (self.abstract((rows, PAGES + width)), self.abstract((rows, tokens)))
            rest += self._seen(self.params, rows, tokens)
            name = f"prefill {rows}x{tokens}x{width}"
            wanted["prefill", rows, tokens, width] = self._program(name, steps.prefill, rest, 2, prefilling)
        if self.config.prompt_logprobs:
            # One shape for all: these are rare, and no client waits for their first token.
            rows, tokens = shapes.prefill_rows[0], shapes.prefill_sizes[-1]
            rest = (self.abstract((rows, PAGES + widest)), self.abstract((rows, tokens + 1)))
            rest += self._seen(self.params, rows, tokens)
            wanted["score", rows, tokens, widest] = self._program("score", steps.score, rest, 3, prefilling)
        return wanted | self._wanted_samplers()

    def _seen(self, params: Any, rows: int, tokens: int) -> tuple[Any, ...]:
        return () if self.tower is None else self.tower.further(params, self.model_state, rows, tokens)

    def chunk_shapes(self) -> list[tuple[int, int, int]]:
        """Returns the rows, tokens and page widths that chunks of prompts come in."""
        shapes, widest = self.shapes, self.shapes.page_widths[-1]
        triples = itertools.product(shapes.prefill_rows, shapes.prefill_sizes, shapes.page_widths)
        # A chunk fills so many pages itself.
        return [(r, t, w) for r, t, w in triples if w == widest or w * self.config.page_size >= t]

    def _wanted_samplers(self) -> dict[tuple[Any, ...], Program]:
        whole, tables = self.whole, abstract_of(self.tables)
        several = None if whole is None else SamplingTables(whole, whole, whole)
        wanted: dict[tuple[Any, ...], Program] = {}
        for rows, mask in self._no_masks.items():
            logits = self.abstract((rows, self.vocab), jnp.float32)
            flags, bits = self.abstract(()), self.abstract(mask.shape)
            arguments = (abstract_of(self.kv.last), tables, self.abstract((rows, PAGES)), logits, flags, bits)
            out = None if whole is None else (whole, several, whole, whole)
            sample = Program(f"sample {rows}", self.steps.sample, arguments, (0, 1), out, self.environment)
            wanted["sample", rows] = sample
        row = tuple(self.abstract((self.vocab,), dtype) for dtype in (jnp.int32, jnp.bool, jnp.float32))
        one_slot = (tables, self.abstract(()), *row)
        wanted["sampling rows",] = Program(
            "sampling rows", write_sampling_rows, one_slot, (0,), several, self.environment
        )
        return wanted

    def _program(
        self, name: str, function: Callable[..., Any], rest: tuple[Any, ...], results: int, environment: Environment
    ) -> Program:
        arguments = tuple(abstract_of(tree) for tree in (self.params, self.model_state, self.kv))
        out = None if self.whole is None else (self.shardings, *(self.whole,) * results)
        return Program(name, function, (*arguments, *rest), (2,), out, environment)

    def abstract(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """Returns what a program takes for an array of the host's."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.whole)

    def _empty(self) -> tuple[KVState, SamplingTables]:
        slots, vocab = self.config.max_sequences + 1, self.vocab
        kinds = (jnp.int32, jnp.bool, jnp.float32)
        tables = SamplingTables(*(jnp.zeros((slots, vocab), dtype, device=self.whole) for dtype in kinds))
        caches = empty_caches(self.paged.cache_spec, self._cache_shardings)
        return KVState(caches, jnp.zeros(slots, jnp.int32, device=self.whole)), tables


def abstract_of(tree: Any) -> Any:
    """Returns shapes, dtypes and a mesh's shardings of arrays."""

    def one(x: Any) -> jax.ShapeDtypeStruct:
        # Only a mesh's shardings are part of a program; one device is wherever its arguments are.
        sharding = getattr(x, "sharding", None)
        named = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named)

    return jax.tree.map(one, tree)


def decoding_environment(environment: Environment) -> Environment:
    """Returns the environment for decoding.

    Rows and positions aren't spread over a mesh: there are as few as one of either, which divides by nothing.
    """
    rules = tuple(rule for rule in environment.plan.activation_rules if rule[0] not in ("batch", "length"))
    plan = dataclasses.replace(environment.plan, activation_rules=rules)
    return for_purpose(dataclasses.replace(environment, plan=plan), "decode")


def prefers_outputs_first(environment: Environment, model: CausalLM) -> bool:
    """Returns whether decoding's matmul kernel prefers weights with their outputs first."""
    with environment.active():
        dtype, width = environment.plan.precision.compute, model.config.input_dim
        return preferred_weight_layout(1, width, width, dtype=dtype) == "outputs_first"


#: JAX's own event; its name is not documented, and a test compiles something to see that it is still sent.
_EVENT = "/jax/core/compile/backend_compile_duration"
_counts: Counter[int] = Counter()
_lock = threading.Lock()
_listening = threading.Event()


def _count(event: str, duration_secs: float, **_: str | int) -> None:
    del duration_secs
    if event == _EVENT:
        with _lock:
            _counts[threading.get_ident()] += 1


def listen() -> None:
    """Begins to count, once a process."""
    with _lock:
        if not _listening.is_set():
            jax.monitoring.register_event_duration_secs_listener(_count)
            _listening.set()


def compilations() -> int:
    """Returns how many programs were compiled on the calling thread since `listen`."""
    return _counts[threading.get_ident()]
