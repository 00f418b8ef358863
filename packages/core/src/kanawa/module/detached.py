"""Running code in a detached copy of a context: what it leaves behind comes back as Outputs, not as side effects.

Every transform that carries a context runs its body here. JAX may trace a body more than once, or throw a trace away,
so nothing is written to the context outside until the transform has returned.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kanawa.module.context import Context, LazyKey, current_context, installed, join_path, trace_state
from kanawa.module.outputs import Collector, Outputs


class StateFound(Exception):  # noqa: N818 (a signal between a body and its loop; it never reaches a caller)
    """A body updated state that its loop doesn't carry yet; thrown out of the trace so that the loop starts again."""

    def __init__(self, scope: "Scope", paths: frozenset[str]) -> None:
        self.scope = scope
        self.paths = paths


class Scope:
    """One use of a transform by the running module: its bodies draw on the same keys however often they are traced.

    `carried` are the state arrays that the transform hands from one run of the body to the next, by path from the
    root: those of the module itself, of its children, and of any module that the body can reach.
    """

    def __init__(self, wrapper: str, layers: tuple[str, ...] = ()) -> None:
        """`layers` are stacked children whose copies have drawn before, each from keys of its own index."""
        self.context = current_context()
        self.context.check_trace(f"{wrapper} is called")
        self.carried: dict[str, Any] = {}
        self._keys_before = self.context.num_keys
        self._keys_after = self.context.num_keys
        drawn, again = self.context.collector.drawn_by, tuple(join_path(self.context.path, name) for name in layers)
        self._drawn_before = {path: call for path, call in drawn.items() if not is_below(path, again)}
        self._drawn: dict[str, object] = {}

    def run(
        self,
        function: Callable[..., Any],
        params: Mapping[str, Any],
        state: Mapping[str, Any],
        key: LazyKey | None,
        args: tuple[Any, ...],
        *,
        layer_index: Mapping[str, Any] | None = None,
        carried: Mapping[str, Any] | None = None,
        offers: bool = False,
    ) -> tuple[Any, Outputs]:
        """Runs `function(*args)`; returns (result, Outputs). `carried` are the present values of carried state.

        `offers` lets what modules offer inside leave with the outputs: for transforms that run their body once.
        """
        fresh = detached(self.context, params, state, key)
        # The running module continues its own keys: its call is the same inside and after the transform.
        fresh.call, fresh.num_keys = self.context.call, self._keys_before
        fresh.layer_index = {**self.context.layer_index, **(layer_index or {})}
        fresh.collector.before.update(carried or {})
        fresh.collector.drawn_by = dict(self._drawn_before)
        with installed(fresh):
            result = function(*args)
        # Branches and attempts draw different numbers of keys; what follows starts behind the longest.
        self._keys_after = max(self._keys_after, fresh.num_keys)
        # The calls of children ended with the trace, and a trace may run again: the scope counts for them all, so that
        # a second use of the transform counts as a second call. The running module's own call continues outside.
        self._drawn |= {p: c if c is fresh.call else self for p, c in fresh.collector.drawn_by.items()}
        return result, fresh.collector.outputs(offers=offers)

    def finish(self, outputs: Outputs, *, continued: bool = False) -> None:
        """Adds what the transform returned to the context that used it."""
        self.context.num_keys = self._keys_after
        for path, call in self._drawn.items():
            self.context.collector.drawn_by.setdefault(path, call)
        self.context.collector.absorb(outputs, continued=continued)

    def repeated(self, attempt: Callable[[dict[str, Any]], Any]) -> Any:
        """Returns `attempt(carried)`, once it carries all the state that its body turns out to update.

        Only a trace shows which state that is; a body that updates none is traced once.
        """
        while True:
            try:
                return attempt(self.carried)
            except StateFound as signal:
                if signal.scope is not self:
                    raise
                # Ends, because there are only so many state arrays, and each round adds one at least.
                self.carried |= {path: value_at(self.context, path) for path in sorted(signal.paths)}

    def next_carried(self, state: Mapping[str, Any], carried: Mapping[str, Any]) -> dict[str, Any]:
        """Returns carried state after a run of the body; raises StateFound where it updated more than that."""
        if not state.keys() <= carried.keys():
            raise StateFound(self, frozenset(state.keys() - carried.keys()))
        return {path: state.get(path, value) for path, value in carried.items()}


def is_below(path: str, tops: tuple[str, ...]) -> bool:
    """Returns whether a path is one of `tops` or below one."""
    return any(path == top or path.startswith((f"{top}.", f"{top}@")) for top in tops)


def value_at(context: Context, path: str) -> Any:
    """Returns the present value of the state array at a path from the root, as this context sees it."""
    latest = context.collector.latest(path)
    if latest is not None:
        return latest
    node: Context | None = context
    while node is not None and node.home and not path.startswith(f"{node.home}."):
        node = node.parent
    assert node is not None  # The root's path is empty.
    value: Any = node.state
    for name in path[len(node.home) :].removeprefix(".").split("."):
        value = value[name]
    return value


def detached(context: Context, params: Mapping[str, Any], state: Mapping[str, Any], key: LazyKey | None) -> Context:
    """Returns a copy of `context` for the body of a transform, with a collector of its own.

    Ancestors are copied too, so that shared modules are still found; they belong to the body's trace. `state` is the
    module's present state, as `current_state` returns it; updates made elsewhere are still seen.
    """
    # Updates of the module itself are in `state` already, and inside a scan only as one layer's slice: handed on by
    # path, the whole arrays would shadow the slices.
    below = f"{context.home}."
    elsewhere = {p: x for p, x in context.collector.updates().items() if context.home and not p.startswith(below)}
    collector = Collector(context.collector.wanted, elsewhere, context.collector.offers())
    trace = trace_state()

    def copy(original: Context | None) -> Context | None:
        if original is None:
            return None
        return dataclasses.replace(
            original, collector=collector, trace=trace, parent=copy(original.parent), call=object()
        )

    return dataclasses.replace(
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


def run_detached(
    context: Context,
    function: Callable[..., Any],
    params: Mapping[str, Any],
    state: Mapping[str, Any],
    key: LazyKey | None,
    args: tuple[Any, ...],
    layer_index: Mapping[str, Any] | None = None,
) -> tuple[Any, Outputs]:
    """Runs `function(*args)` in a detached copy of `context`; returns (result, Outputs).

    For strategies that slice parameters and state themselves; the transforms use Scope.
    """
    fresh = detached(context, params, state, key)
    if layer_index is not None:
        fresh.layer_index = {**context.layer_index, **layer_index}
    with installed(fresh):
        result = function(*args)
    return result, fresh.collector.outputs()
