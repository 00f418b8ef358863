"""JAX transforms that carry the module context: the body runs detached and returns its Outputs explicitly.

Bare `jax.checkpoint`, `jax.vmap` and the like would leak tracers through the context or drop what was recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kanawa.errors import ContextError
from kanawa.module.context import LazyKey, current_context, installed, run_detached
from kanawa.module.outputs import Outputs


def remat(function: Callable[..., Any], policy: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns `function`, recomputed in the backward pass; `policy` as in jax.checkpoint."""

    def wrapped(*args: Any) -> Any:
        context = current_context()

        def pure(params: Any, state: Any, *inner: Any) -> tuple[Any, Outputs]:
            return run_detached(context, function, params, state, context.key, inner, offers=True)

        result, outputs = jax.checkpoint(pure, policy=policy)(context.params, context.state, *args)
        context.collector.absorb(outputs)
        return result

    return wrapped


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns `function` compiled on its own; `options` as in jax.jit."""

    def wrapped(*args: Any) -> Any:
        context = current_context()
        key = None if context.key is None else context.key.draw()

        def pure(params: Any, state: Any, inner_key: Any, *inner: Any) -> tuple[Any, Outputs]:
            lazy = None if inner_key is None else LazyKey(inner_key)
            return run_detached(context, function, params, state, lazy, inner, offers=True)

        result, outputs = jax.jit(pure, **options)(context.params, context.state, key, *args)
        context.collector.absorb(outputs)
        return result

    return wrapped


def vmap(function: Callable[..., Any], in_axes: Any = 0, axis_size: int | None = None) -> Callable[..., Any]:
    """Returns `function` mapped over leading axes with shared parameters and a key of its own per element.

    Metrics and losses are reduced over the axis; state updates and emitted values are stacked.
    """

    def wrapped(*args: Any) -> Any:
        context = current_context()
        axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        size = axis_size or next(
            leaf.shape[axis]
            for arg, axis in zip(args, axes, strict=True)
            if axis is not None
            for leaf in jax.tree.leaves(arg)
        )

        def pure(index: Any, *inner: Any) -> tuple[Any, Outputs]:
            key = None if context.key is None else context.key.fold("vmap", index)
            return run_detached(context, function, context.params, context.state, key, inner)

        mapped = jax.vmap(pure, in_axes=(0, *axes), axis_size=size)
        result, outputs = mapped(jax.numpy.arange(size), *args)
        context.collector.absorb(outputs.reduce_leading())
        return result

    return wrapped


def cond(predicate: Any, true_function: Callable[..., Any], false_function: Callable[..., Any], *args: Any) -> Any:
    """Returns one branch's result, like jax.lax.cond; both branches must record the same things."""
    context = current_context()
    kernels: dict[Any, None] = {}

    def branch(function: Callable[..., Any]) -> Callable[..., Any]:
        def pure(*inner: Any) -> tuple[Any, Outputs]:
            result, out = run_detached(context, function, context.params, context.state, context.key, inner)
            # The branches' manifests may differ, and static data must not: join them outside.
            kernels.update(dict.fromkeys(out.kernels))
            return result, Outputs(out.metrics, out.losses, out.state, out.emitted)

        return pure

    try:
        result, outputs = jax.lax.cond(predicate, branch(true_function), branch(false_function), *args)
    except TypeError as error:
        error.add_note(f"in module {context.module.path}: both branches of kn.cond must record the same paths")
        raise
    context.collector.absorb(outputs)
    context.collector.kernels.update(kernels)
    return result


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: Any) -> Any:
    """Returns the final carry, like jax.lax.while_loop; the body may read parameters but record nothing.

    How often it runs is unknown, so there is nowhere to put outputs: carry them instead.
    """
    context = current_context()

    def pure(carry: Any) -> Any:
        index, inner = carry
        key = None if context.key is None else context.key.fold("while", index)
        result, outputs = run_detached(context, body, context.params, context.state, key, (inner,))
        if jax.tree.leaves(outputs):
            message = (
                f"{context.module.path}: the body of kn.while_loop recorded metrics, losses, state or emissions; "
                f"return them in the carry, or use kn.scan with a fixed length"
            )
            raise ContextError(message)
        context.collector.kernels.update(dict.fromkeys(outputs.kernels))
        return index + 1, result

    def keep_going(carry: Any) -> Any:
        with installed(None):
            return condition(carry[1])

    return jax.lax.while_loop(keep_going, pure, (jax.numpy.zeros((), "int32"), initial))[1]


def shard_map(
    function: Callable[..., Any],
    *,
    in_specs: Sequence[Any],
    out_specs: Any,
    axis_names: Sequence[str],
    param_specs: Any = None,
) -> Callable[..., Any]:
    """Returns `function` run per shard over `axis_names` of the context mesh.

    Parameters arrive whole unless `param_specs` says otherwise. Metrics and losses are summed over the shards;
    state updates must not differ between shards.
    """
    names = tuple(axis_names)

    def wrapped(*args: Any) -> Any:
        context = current_context()
        key = None if context.key is None else context.key.draw()

        def pure(params: Any, state: Any, inner_key: Any, *inner: Any) -> tuple[Any, Outputs]:
            lazy = None
            if inner_key is not None:
                lazy = LazyKey(inner_key, tuple(jax.lax.axis_index(name) for name in names))
            result, outputs = run_detached(context, function, params, state, lazy, inner)
            return result, outputs.across(names)

        whole = PartitionSpec()
        mapped = jax.shard_map(
            pure,
            in_specs=(whole if param_specs is None else param_specs, whole, whole, *in_specs),
            out_specs=(out_specs, whole),
            axis_names=set(names),
            check_vma=False,
        )
        result, outputs = mapped(context.params, context.state, key, *args)
        context.collector.absorb(outputs)
        return result

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
