"""`kn.cond` and `kn.while_loop`: control flow on traced values that carries the module context."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from kanawa.errors import ContextError
from kanawa.module.context import Context, installed
from kanawa.module.detached import Scope
from kanawa.module.outputs import Outputs, counted


def cond(predicate: Any, true_function: Callable[..., Any], false_function: Callable[..., Any], *args: Any) -> Any:
    """Returns one branch's result, like jax.lax.cond.

    State that one branch leaves alone keeps its value there. Metrics, losses and emitted values must be the same in
    both: raises ContextError naming those that aren't.
    """
    scope = Scope("kn.cond")
    context = scope.context
    state = context.current_state()
    traced: dict[bool, Outputs] = {}

    def branch(function: Callable[..., Any], side: bool, carried: dict[str, Any]) -> Callable[..., Any]:
        def pure(*inner: Any) -> tuple[Any, Outputs, dict[str, Any]]:
            result, out = scope.run(function, context.params, state, context.key, inner, carried=carried)
            # Both branches return the union, so that one without an update returns the old state.
            next_state = scope.next_carried(out.state, carried)
            traced[side] = out
            if len(traced) == 2:
                _check_alike(context, traced[True], traced[False])
            # The branches' manifests may differ, and static data must not: they are joined outside.
            return result, dataclasses.replace(out, state={}, kernels=()), next_state

        return pure

    def attempt(carried: dict[str, Any]) -> Any:
        # An attempt that was thrown away, for state it didn't carry, has left its traces here.
        traced.clear()
        return jax.lax.cond(
            predicate, branch(true_function, True, carried), branch(false_function, False, carried), *args
        )

    result, outputs, updated = scope.repeated(attempt)
    kernels = counted(choice for out in traced.values() for choice in out.kernels)
    scope.finish(dataclasses.replace(outputs, state=updated, kernels=kernels))
    return result


def _check_alike(context: Context, true: Outputs, false: Outputs) -> None:
    uneven = [
        f"{kind} {path} (only where {side})"
        for kind in ("metrics", "losses", "emitted")
        for side, mine, other in (("true", true, false), ("false", false, true))
        for path in sorted(getattr(mine, kind).keys() - getattr(other, kind).keys())
    ]
    if uneven:
        message = (
            f"{context.module.path}: both branches of kn.cond must record the same paths, and these differ: "
            f"{', '.join(uneven)}; record them after the kn.cond, from what the branches return"
        )
        raise ContextError(message)


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: Any) -> Any:
    """Returns the final carry, like jax.lax.while_loop; the body may read parameters, and read and update state.

    Raises ContextError where it records anything: how often it runs is unknown, so there is nowhere to put outputs.
    """
    scope = Scope("kn.while_loop")
    context = scope.context
    state, kernels = context.current_state(), dict[Any, None]()

    def attempt(carried: dict[str, Any]) -> Any:
        def pure(held: Any) -> Any:
            # jax.lax.while_loop has no counter that the body could see; this one makes the keys of its rounds differ.
            index, inner, before = held
            key = None if context.key is None else context.key.fold("while", index)
            result, outputs = scope.run(body, context.params, state, key, (inner,), carried=before)
            recorded = [*outputs.metrics, *outputs.losses, *outputs.emitted]
            if recorded:
                message = (
                    f"{context.module.path}: the body of kn.while_loop recorded {', '.join(sorted(recorded))}, and how "
                    f"often it runs is unknown; return it in the carry, or use kn.scan with a fixed length"
                )
                raise ContextError(message)
            kernels.update(dict.fromkeys(outputs.kernels))
            return index + 1, result, scope.next_carried(outputs.state, before)

        return jax.lax.while_loop(keep_going, pure, (jax.numpy.zeros((), "int32"), initial, carried))

    def keep_going(held: Any) -> Any:
        # The condition is traced by itself and returns one boolean: what it recorded would be lost.
        with installed(None):
            return condition(held[1])

    _, result, updated = scope.repeated(attempt)
    scope.finish(Outputs(state=updated, kernels=tuple(kernels)))
    return result
