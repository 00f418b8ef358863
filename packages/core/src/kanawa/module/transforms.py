"""JAX transforms that carry the module context: the body runs detached and returns its Outputs explicitly.

Bare `jax.checkpoint`, `jax.vmap` and the like would leak tracers through the context or drop what was recorded.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kanawa.errors import ContextError
from kanawa.module.context import LazyKey, installed
from kanawa.module.detached import Scope
from kanawa.module.outputs import Outputs


def remat(function: Callable[..., Any], policy: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns `function`, recomputed in the backward pass; `policy` as in jax.checkpoint."""

    def wrapped(*args: Any) -> Any:
        scope = Scope("kn.remat")
        context = scope.context

        def pure(params: Any, state: Any, *inner: Any) -> tuple[Any, Outputs]:
            return scope.run(function, params, state, context.key, inner, offers=True)

        result, outputs = jax.checkpoint(pure, policy=policy)(context.params, context.current_state(), *args)
        scope.finish(outputs)
        return result

    return wrapped


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns `function` compiled on its own; `options` as in jax.jit."""

    def wrapped(*args: Any) -> Any:
        scope = Scope("kn.jit")
        context = scope.context
        # Folds may be names, which are no arrays: the drawn key goes in as an argument, and another one doesn't compile
        # anew.
        key = None if context.key is None else context.key.draw()

        def pure(params: Any, state: Any, inner_key: Any, *inner: Any) -> tuple[Any, Outputs]:
            lazy = None if inner_key is None else LazyKey(inner_key)
            return scope.run(function, params, state, lazy, inner, offers=True)

        # A new `pure` each time, so that it is traced each time: the scope learns from the trace what was drawn. The
        # outer program is traced once.
        result, outputs = jax.jit(pure, **options)(context.params, context.current_state(), key, *args)
        scope.finish(outputs)
        return result

    return wrapped


def vmap(function: Callable[..., Any], in_axes: Any = 0, axis_size: int | None = None) -> Callable[..., Any]:
    """Returns `function` mapped over leading axes with shared parameters and a key of its own per element.

    Metrics and losses are reduced over the axis, and emitted values are stacked. State is shared like parameters: an
    update must be the same for every element, such as a count of calls. Raises ContextError for one that isn't.
    """

    def wrapped(*args: Any) -> Any:
        scope = Scope("kn.vmap")
        context = scope.context
        axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        size = axis_size or next(
            leaf.shape[axis]
            for arg, axis in zip(args, axes, strict=True)
            if axis is not None
            for leaf in jax.tree.leaves(arg)
        )
        state, traced = context.current_state(), Outputs()

        def pure(index: Any, *inner: Any) -> tuple[Any, Outputs, dict[str, Any]]:
            nonlocal traced
            key = None if context.key is None else context.key.fold("vmap", index)
            result, traced = scope.run(function, context.params, state, key, inner)
            return result, dataclasses.replace(traced, state={}), traced.state

        # out_axes None refuses values that differ by element, which is just what shared state must not do.
        mapped = jax.vmap(pure, in_axes=(0, *axes), out_axes=(0, 0, None), axis_size=size)
        try:
            result, outputs, updated = mapped(jax.numpy.arange(size), *args)
        except ValueError as error:
            # Whether an update depends on the element, only vmap knows, and it has no error of its own.
            if "out_axes" not in str(error) or not traced.state:
                raise
            raise ContextError(_state_per_element(context.module.path, traced.state)) from error
        scope.finish(dataclasses.replace(outputs.reduce_leading(), state=updated))
        return result

    return wrapped


def _state_per_element(path: str, state: Mapping[str, Any]) -> str:
    return (
        f"{path}: kn.vmap runs a body that updates {', '.join(sorted(state))} differently for every element, and a "
        f"state array has one value; go through the elements with kn.scan, which hands state from one to the next, or "
        f"give the module the whole batch"
    )


def shard_map(
    function: Callable[..., Any],
    *,
    in_specs: Sequence[Any],
    out_specs: Any,
    axis_names: Sequence[str],
    param_specs: Any = None,
    prepare: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Returns `function` run per shard over `axis_names` of the context mesh.

    Parameters arrive whole unless `param_specs` says otherwise; `prepare` changes their tree on each shard, such as to
    one of `StoredShard`. Metrics and losses are summed over the shards;
    state updates must not differ between shards.
    """
    names = tuple(axis_names)

    def wrapped(*args: Any) -> Any:
        scope = Scope("kn.shard_map")
        context = scope.context
        key = None if context.key is None else context.key.draw()

        def pure(params: Any, state: Any, inner_key: Any, *inner: Any) -> tuple[Any, Outputs]:
            lazy = None
            if inner_key is not None:
                # By shard, because each has other rows: with one key all would drop the same places of theirs.
                lazy = LazyKey(inner_key, tuple(jax.lax.axis_index(name) for name in names))
            result, outputs = scope.run(function, params if prepare is None else prepare(params), state, lazy, inner)
            return result, outputs.across(names)

        whole = PartitionSpec()
        mapped = jax.shard_map(
            pure,
            in_specs=(whole if param_specs is None else param_specs, whole, whole, *in_specs),
            out_specs=(out_specs, whole),
            axis_names=set(names),
            check_vma=False,
        )
        result, outputs = mapped(context.params, context.current_state(), key, *args)
        scope.finish(outputs)
        return result

    return wrapped


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


def custom_vjp(
    function: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    nondiff_argnums: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """Returns `function` with its own gradient, like jax.custom_vjp.

    The three functions take parameters as arguments and never see a context: a value read from one would be a
    closed-over tracer, whose gradient jax.custom_vjp loses.
    """

    def hidden(inner: Callable[..., Any]) -> Callable[..., Any]:
        def without_context(*args: Any) -> Any:
            with installed(None):
                return inner(*args)

        return without_context

    wrapped = jax.custom_vjp(hidden(function), nondiff_argnums=nondiff_argnums)
    wrapped.defvjp(hidden(forward), hidden(backward))
    return wrapped
