"""The invocation context: which module is running, with which slice of parameters, state, key and outputs.

Modules never hold a context; a context refers to its module. One context variable names the innermost one.
"""

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax

from kanawa.arrays.prng import fold_name
from kanawa.arrays.tree import merge_trees, unflatten_paths
from kanawa.errors import ContextError
from kanawa.foreign.table import NamedModule
from kanawa.module.outputs import Collector, twice

try:
    # As jax.extend.core has it, whose package imports all of Pallas with it: a tenth of what every command needs to
    # start (jax 0.10 to 0.12).
    from jax._src.core import get_opaque_trace_state
except ImportError:
    from jax.extend.core import get_opaque_trace_state

if TYPE_CHECKING:
    from kanawa.module.metrics import Metric

WRAPPERS = "kn.scan, kn.remat, kn.vmap, kn.cond, kn.while_loop, kn.grad, kn.shard_map or kn.jit"


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
    # Two marks compare equal only inside one trace; JAX has no other public test for that.
    return get_opaque_trace_state(convention="flax")


class RunningModule(NamedModule, Protocol):
    """A module as its context sees it."""

    @property
    def parent(self) -> "RunningModule | None":
        """The module that has this one as a child; None at the root."""
        ...

    @property
    def children(self) -> "Mapping[str, RunningModule]":
        """The modules below, by name."""
        ...

    def record(self, name: str, metric: "Metric") -> None:
        """Records a metric under the module's path."""
        ...


@dataclasses.dataclass
class Context:
    """One call of one module; `call` marks this call alone.

    `path` is relative to the functional's root and says which call this is ("norm@second"); `home` is the same
    without the names of calls, because parameters and state belong to the module, not to one call of it.
    """

    module: "RunningModule"
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
    home: str = ""

    def child(self, module: "RunningModule", name: str, call: str = "") -> "Context":
        """Returns the context for a call of the child `name`; `call` names one of several calls of the same child."""
        key = self.key
        if key is not None:
            # The index is folded as data, not as a name: inside a scan it is traced, and has no text.
            index = self.layer_index.get(name)
            key = key.fold(name) if index is None else key.fold(name, index)
            key = key.fold(call) if call else key
        return Context(
            module=module,
            path=join_path(self.path, f"{name}@{call}" if call else name),
            home=join_path(self.home, name),
            params=self.params.get(name, {}),
            state=self.state.get(name, {}),
            key=key,
            train=self.train,
            collector=self.collector,
            trace=self.trace,
            parent=self,
        )

    @property
    def layer(self) -> int | jax.Array | None:
        """The index of the layer that runs, the innermost where stacks are nested; None outside of stacks."""
        node = self
        while node.parent is not None:
            index = node.parent.layer_index.get(node.module.name)
            if index is not None:
                return index
            node = node.parent
        return None

    def path_of(self, name: str) -> str:
        """Returns the output path of `name` recorded here."""
        return join_path(self.path, name)

    def read_state(self, name: str) -> jax.Array:
        """Returns a state array as the last update left it, in this trace or around it."""
        latest: jax.Array | None = self.collector.latest(join_path(self.home, name))
        return self.state[name] if latest is None else latest

    def current_state(self) -> Mapping[str, Any]:
        """Returns the state of this module and all below it with the updates made so far."""
        updated = self.collector.updates_below(self.home)
        return merge_trees(self.state, unflatten_paths(updated)) if updated else self.state

    def check_trace(self, doing: str) -> None:
        """Raises ContextError where a bare JAX transform is between this context and the code using it."""
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
                f"{self.module.path} draws random numbers, but has no key; "
                f"pass key=jax.random.key(seed) to kn.functional(...)"
            )
            raise ContextError(message)
        # A second call under the same path would count from 0 again and draw the same keys: dropout twice alike.
        owner = self.collector.drawn_by.setdefault(self.path, self.call)
        if owner is not self.call:
            raise ContextError(twice(self.path, "random draws"))
        # Counted, not split: adding a draw at the end leaves those before it as they were.
        self.num_keys += 1
        return self.key.fold(self.num_keys - 1).draw()


_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("kanawa", default=None)
#: The name of the calls made now, and the module that makes them: what those calls call in turn has its own names.
_call_name: contextvars.ContextVar[tuple[str, "RunningModule | None"]] = contextvars.ContextVar(
    "kanawa_call_name", default=("", None)
)


def join_path(path: str, name: str) -> str:
    """Returns the path of `name` below `path`, which is empty at the root."""
    return f"{path}.{name}" if path else name


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
    """Names the calls that the running module makes of its children, so that a second call differs from the first.

    What is recorded, emitted and drawn at random belongs to a call: `norm@second.mean`. State belongs to the module:
    each call starts from what the one before left, and the last one wins. Raises ContextError for a name that
    can't stand in a path.
    """
    if re.fullmatch(r"[\w\-]+", name) is None:
        message = f"call_name({name!r}): the name is part of output paths; use letters, digits, '_' and '-'"
        raise ContextError(message)
    context = _current.get()
    token = _call_name.set((name, None if context is None else context.module))
    try:
        yield
    finally:
        _call_name.reset(token)


def record_kernel(choice: Any) -> None:
    """Adds a kernel choice to the manifest of the running call; does nothing outside of one."""
    context = _current.get()
    if context is not None:
        context.collector.kernels[choice] = context.collector.kernels.get(choice, 0) + choice.count


def child_context(target: "RunningModule") -> Context | None:
    """Returns the context for calling `target` from the running module, or None where there is no way to it.

    Goes down from the running module; for a module shared by an ancestor, first up to that ancestor.
    """
    context = _current.get()
    call, caller = _call_name.get()
    if context is None or caller is not context.module:
        call = ""
    while context is not None:
        chain: list[RunningModule] = []
        # From the target upwards: ends at the running module, or behind the root, and then the next context out is
        # tried.
        node: RunningModule | None = target
        while node is not None and node is not context.module:
            chain.append(node)
            node = node.parent
        if node is not None:
            # Through every level between: each has its own slice of the parameters and its own key.
            for module in reversed(chain):
                context = context.child(module, module.name, call if module is target else "")
            return context
        context = context.parent
    return None
