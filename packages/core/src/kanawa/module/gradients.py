"""`kn.grad` and `kn.value_and_grad`: derivatives inside a module, of a function that calls modules."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from kanawa.module.detached import Scope
from kanawa.module.outputs import Outputs


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Returns a function of the same arguments that returns (value, gradients), like jax.value_and_grad.

    The gradient is by the arguments in `argnums`; parameters that the body reads are constants to it, and an outer
    gradient goes through both. With `has_aux`, `function` returns (value, aux), and the result is ((value, aux),
    gradients). What the body records, emits and updates counts once, as in a plain call.
    """

    def wrapped(*args: Any) -> Any:
        scope = Scope("kn.grad")
        context = scope.context
        state = context.current_state()

        def pure(*inner: Any) -> tuple[Any, tuple[Any, Outputs]]:
            result, outputs = scope.run(function, context.params, state, context.key, inner, offers=True)
            value, aux = result if has_aux else (result, None)
            return value, (aux, outputs)

        by = argnums if isinstance(argnums, int) else tuple(argnums)
        # Outputs leave as aux: stored from inside, they would be tracers of a differentiation that is over.
        (value, (aux, outputs)), gradients = jax.value_and_grad(pure, argnums=by, has_aux=True)(*args)
        scope.finish(outputs)
        return ((value, aux) if has_aux else value), gradients

    return wrapped


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function of the same arguments that returns gradients, or (gradients, aux); see value_and_grad."""
    both = value_and_grad(function, argnums, has_aux)

    def wrapped(*args: Any) -> Any:
        value, gradients = both(*args)
        return (gradients, value[1]) if has_aux else gradients

    return wrapped
