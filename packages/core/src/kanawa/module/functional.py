"""`functional` makes a module call pure; `initialize` and `param_specs` derive everything else from declarations."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from kanawa.arrays.prng import fold_name
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import Tree, flatten_paths, map_paths, merge_trees, unflatten_paths
from kanawa.errors import ModuleError
from kanawa.module.context import Context, LazyKey, installed, trace_state
from kanawa.module.emission import Change, Wanted
from kanawa.module.module import Module
from kanawa.module.outputs import Collector, Outputs


def functional(module: Module, method: str = "forward") -> Callable[..., tuple[Any, Outputs]]:
    """Returns `f(params, state, *args, key=None, train=False, emit=(), intervene=None, **kwargs)`, pure.

    It returns (result, Outputs). `key` seeds every random draw; `emit` are path globs of values to keep in
    `Outputs.emitted`. `intervene` maps such globs to functions `(value, layer) -> value`: the model goes on with what
    they return, of the same shapes and dtypes; `layer` is the index in a stack, traced in a loop, None outside of one.
    A glob that matches nothing raises EmissionError, which lists what there is.
    """
    if not callable(getattr(module, method, None)):
        message = f"{module.path} ({type(module).__name__}) has no method {method!r}"
        raise ModuleError(message)

    def pure(
        params: Mapping[str, Any],
        state: Mapping[str, Any],
        *args: Any,
        key: jax.Array | None = None,
        train: bool = False,
        emit: tuple[str, ...] = (),
        intervene: Mapping[str, Change] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, Outputs]:
        wanted = Wanted((emit,) if isinstance(emit, str) else emit, intervene)
        collector = Collector(wanted)
        context = Context(
            module=module,
            path="",
            params=params,
            state=state,
            key=None if key is None else LazyKey(key),
            train=train,
            collector=collector,
            trace=trace_state(),
        )
        with installed(context):
            result = getattr(module, method)(*args, **kwargs)
        wanted.check(f"{module.path}.{method}")
        return result, collector.outputs()

    return pure


def param_specs(module: Module) -> Tree:
    """Returns the nested dictionary of ParamSpecs, with the leading axes of stacked children in place."""
    return _specs(module, lambda m: m.param_specs)


def state_specs(module: Module) -> Tree:
    """Returns the nested dictionary of state specs; modules without state have no entry."""
    return _specs(module, lambda m: m.state_specs)


def _specs(module: Module, declared: Callable[[Module], Mapping[str, ParamSpec]]) -> Tree:
    tree: Tree = dict(declared(module))
    for name, child in module.children.items():
        below = _specs(child, declared)
        if (length := child.num_stacked) is not None:
            below = map_paths(functools.partial(_stacked, length), below)
        if child.frozen:
            below = map_paths(lambda _, s: dataclasses.replace(s, trainable=False), below)
        if below:
            tree[name] = below
    return tree


def _stacked(length: int, path: str, spec: ParamSpec) -> ParamSpec:
    del path
    return spec.stacked(length)


def initialize(module: Module, key: jax.Array) -> Tree:
    """Returns freshly drawn parameters; each depends on its path and layer index only, never on order."""
    return _draw(module, key, lambda m: m.param_specs)


def initial_state(module: Module, key: jax.Array) -> Tree:
    """Returns the initial state arrays."""
    return _draw(module, key, lambda m: m.state_specs)


def _draw(module: Module, key: jax.Array, declared: Callable[[Module], Mapping[str, ParamSpec]]) -> Tree:
    tree: Tree = {name: spec.draw(fold_name(key, name)) for name, spec in declared(module).items()}
    for name, child in module.children.items():
        child_key = fold_name(key, name)
        if child.num_stacked is None:
            below = _draw(child, child_key, declared)
        else:
            # By index, not split: layer 3 of a deeper model draws what layer 3 of this one does.
            indices = jnp.arange(child.num_stacked)
            keys = jax.vmap(lambda i, k=child_key: jax.random.fold_in(k, i))(indices)
            below = jax.vmap(lambda k, c=child: _draw(c, k, declared))(keys)
        if below:
            tree[name] = below
    return tree


def next_state(state: Mapping[str, Any], outputs: Outputs) -> Tree:
    """Returns the state after a call: updated arrays laid over the old ones."""
    return merge_trees(state, unflatten_paths(outputs.state))


class ParameterCount(NamedTuple):
    """All parameters, and those that take part in one token's forward pass."""

    total: int
    active: int


def count_parameters(module: Module) -> ParameterCount:
    """Returns the counts of a built module, from its declarations alone; what it leaves idle, each layer says."""
    total = sum(spec.size for spec in flatten_paths(param_specs(module)).values())
    return ParameterCount(total, total - module.idle_parameters())
