"""The invocation context: which module is running, with which slice of parameters, state, key and outputs.

Modules never hold a context; a context refers to its module. One context variable names the innermost one.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import get_opaque_trace_state

from kanawa.arrays.prng import fold_name
from kanawa.errors import ContextError
from kanawa.module.outputs import Collector, twice

if TYPE_CHECKING:
    from kanawa.module.module import Module

WRAPPERS = "kn.scan, kn.remat, kn.vmap, kn.cond, kn.while_loop, kn.shard_map or kn.jit"


@dataclasses.dataclass(frozen=True)
class LazyKey:
    """A key and the folds still to do; an unused one costs nothing in the traced program."""

    base: jax.Array
    folds: tuple[str | int | jax.Array, ...] = ()

    def fold(self, *folds: str | int | jax.Array) -> "LazyKey":
        """Returns the key with further folds: names by their hash, indices (which may be traced) as they are."""
        return LazyKey(self.base, self.folds + folds)

    def draw(self) -> jax.Array:
        """Returns the folded key."""
        key = self.base
        for fold in self.folds:
            key = fold_name(key, fold) if isinstance(fold, str) else jax.random.fold_in(key, fold)
        return key


def trace_state() -> Any:
    """Returns a comparable mark of the JAX trace that runs now."""
    return get_opaque_trace_state(convention="flax")


@dataclasses.dataclass
class Context:
    """One call of one module. `path` is relative to the functional's root; `call` marks this call alone."""

    module: "Module"
    path: str
    params: Mapping[str, Any]
    state: Mapping[str, Any]
    key: LazyKey | None
    train: bool
    collector: Collector
    trace: Any
    parent: "Context | None" = None
    #: Index of the current layer for a stacked child, set by kn.scan.
    layer_index: Mapping[str, int | jax.Array] = dataclasses.field(default_factory=dict)
    call: object = dataclasses.field(default_factory=object)
    num_keys: int = 0

    def child(self, module: "Module", name: str) -> "Context":
        """Returns the context for a call of the child `name`."""
        key = self.key
        if key is not None:
            index = self.layer_index.get(name)
            key = key.fold(name) if index is None else key.fold(name, index)
        label = name + _call_name.get()
        return Context(
            module=module,
            path=f"{self.path}.{label}" if self.path else label,
            params=self.params.get(name, {}),
            state=self.state.get(name, {}),
            key=key,
            train=self.train,
            collector=self.collector,
            trace=self.trace,
            parent=self,
        )

    def path_of(self, name: str) -> str:
        """Returns the output path of `name` recorded here."""
        return f"{self.path}.{name}" if self.path else name

    def check_trace(self, doing: str) -> None:
        """Raises ContextError where a bare JAX transform stands between this context and the code using it."""
        if trace_state() != self.trace:
            message = (
                f"{self.module.path}: {doing} inside a JAX transform that doesn't carry the module context: its "
                f"result would leak or vanish; use {WRAPPERS} instead of the bare jax transform"
            )
            raise ContextError(message)

    def next_key(self) -> jax.Array:
        """Returns a fresh key: the path's key folded with a counter of this call."""
        if self.key is None:
            message = (
                f"{self.module.path} draws random numbers, but no key was given; "
                f"pass key=jax.random.key(seed) to kn.functional(...)"
            )
            raise ContextError(message)
        owner = self.collector.drawn_by.setdefault(self.path, self.call)
        if owner is not self.call:
            raise ContextError(twice(self.path, "random draws"))
        self.num_keys += 1
        return self.key.fold(self.num_keys - 1).draw()


_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("kanawa", default=None)
_call_name: contextvars.ContextVar[str] = contextvars.ContextVar("kanawa_call_name", default="")


def current_context() -> Context:
    """Returns the innermost context; raises ContextError outside of a functional call."""
    context = _current.get()
    if context is None:
        message = "no module is running; call modules through kn.functional(module)(params, state, …)"
        raise ContextError(message)
    return context


def find_context() -> Context | None:
    """Returns the innermost context, or None outside of a functional call."""
    return _current.get()


@contextlib.contextmanager
def installed(context: Context | None) -> Iterator[Context | None]:
    """Makes `context` the innermost one."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@contextlib.contextmanager
def call_name(name: str) -> Iterator[None]:
    """Names a second call of a child, so that its outputs and random draws are told apart from the first's."""
    token = _call_name.set(f"@{name}")
    try:
        yield
    finally:
        _call_name.reset(token)


def record_kernel(choice: Any) -> None:
    """Adds a kernel choice to the manifest of the running call; does nothing outside of one."""
    context = _current.get()
    if context is not None:
        context.collector.kernels[choice] = None


def child_context(target: "Module") -> Context | None:
    """Returns the context for calling `target` from the running module, or None where there is no way to it.

    Goes down from the running module; for a module shared by an ancestor, first up to that ancestor.
    """
    context = _current.get()
    while context is not None:
        chain: list[Module] = []
        node: Module | None = target
        while node is not None and node is not context.module:
            chain.append(node)
            node = node.parent
        if node is not None:
            for module in reversed(chain):
                context = context.child(module, module.name)
            return context
        context = context.parent
    return None


def detached(
    context: Context, params: Mapping[str, Any], state: Mapping[str, Any], key: LazyKey | None
) -> tuple[Context, Collector]:
    """Returns a copy of `context` for the body of a transform, with a collector of its own.

    Ancestors are copied too, so that shared modules are still found; they belong to the body's trace.
    """
    collector = Collector(context.collector.emit, context.collector.offers())
    trace = trace_state()

    def copy(original: Context | None) -> Context | None:
        if original is None:
            return None
        return dataclasses.replace(
            original, collector=collector, trace=trace, parent=copy(original.parent), call=object()
        )

    fresh = dataclasses.replace(
        context,
        params=params,
        state=state,
        key=key,
        collector=collector,
        trace=trace,
        parent=copy(context.parent),
        call=object(),
        num_keys=0,
    )
    return fresh, collector


def run_detached(
    context: Context,
    function: Callable[..., Any],
    params: Mapping[str, Any],
    state: Mapping[str, Any],
    key: LazyKey | None,
    args: tuple[Any, ...],
    layer_index: Mapping[str, Any] | None = None,
    *,
    offers: bool = False,
) -> tuple[Any, Any]:
    """Runs `function(*args)` in a detached copy of `context`; returns (result, Outputs).

    `offers` lets what modules offer inside leave with the outputs: for transforms that run their body once.
    """
    fresh, collector = detached(context, params, state, key)
    if layer_index is not None:
        fresh.layer_index = {**context.layer_index, **layer_index}
    with installed(fresh):
        result = function(*args)
    return result, collector.outputs(offers=offers)
