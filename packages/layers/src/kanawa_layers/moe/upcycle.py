"""Sparse upcycling (Komatsuzaki et al. 2022, arXiv:2212.05055): a mixture that starts as its dense model."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.tree import Tree, flatten_paths, unflatten_paths
from kanawa.errors import KanawaError

from kanawa_layers.moe.mixture import MixtureOfExperts


class UpcycleError(KanawaError):
    """The dense parameters don't fit the model with mixtures."""


def upcycle(model: kn.Module, dense: Mapping[str, Any], key: jax.Array) -> Tree:
    """Returns parameters of `model`, whose mixtures stand where the model of `dense` has feed-forwards.

    Every expert is a copy of the dense feed-forward; routers are drawn from `key`. With normalised top-k weights and no
    shared feed-forward, the model then computes what the dense one did. All other parameters are copied. Raises
    UpcycleError naming each parameter that is missing, left over or of another shape.
    """
    problems: list[str] = []
    params = _upcycled(model, dense, jax.eval_shape(lambda k: kn.initialize(model, k), key), (), "", problems)
    if problems:
        message = f"can't upcycle to {type(model).__name__}:\n" + "\n".join(f"  {problem}" for problem in problems)
        raise UpcycleError(message)
    flat = flatten_paths(params)
    wanted = [path for path, leaf in flat.items() if leaf is None]

    def draw(k: jax.Array) -> dict[str, jax.Array]:
        # The compiler removes the draws of everything that isn't returned.
        fresh = flatten_paths(kn.initialize(model, k))
        return {path: fresh[path] for path in wanted}

    return unflatten_paths({**flat, **jax.jit(draw)(key)})


def _upcycled(
    module: kn.Module, dense: Mapping[str, Any], wanted: Mapping[str, Any], stacked: tuple[int, ...], path: str,
    problems: list[str],
) -> Tree:  # fmt: skip
    """Returns the tree of `wanted`, with None for parameters to be drawn."""
    if isinstance(module, MixtureOfExperts):
        return _mixture(dense, wanted, len(stacked), path, problems)
    tree: Tree = {}
    for name, value in wanted.items():
        at = f"{path}.{name}" if path else name
        if name not in dense:
            problems.append(f"{at}: missing in the dense parameters")
        elif isinstance(value, Mapping):
            child = module.children[name]
            below = (*stacked, child.num_stacked) if child.num_stacked is not None else stacked
            tree[name] = _upcycled(child, dense[name], value, below, at, problems)
        else:
            tree[name] = _checked(dense[name], value.shape, at, problems)
    problems += [f"{path}.{name}: left over".lstrip(".") for name in dense if name not in wanted]
    return tree


def _mixture(dense: Mapping[str, Any], wanted: Mapping[str, Any], axis: int, path: str, problems: list[str]) -> Tree:
    """Returns a mixture's tree: experts copied along a new axis after the layers', all others to be drawn."""
    tree: Tree = {name: jax.tree.map(lambda _: None, value) for name, value in wanted.items() if name != "experts"}
    sources = {}
    for name, value in flatten_paths(dense).items():
        # A dense feed-forward has gate.weight and gate.bias where experts have gate and gate_bias.
        projection, _, kind = name.rpartition(".")
        sources[projection if kind == "weight" else f"{projection}_{kind}"] = value
    experts: Tree = {}
    for name, value in wanted["experts"].items():
        source = sources.pop(name, None)
        if source is None:
            problems.append(f"{path}.experts.{name}: the dense feed-forward has nothing for it")
            continue
        copies = jnp.repeat(jnp.expand_dims(source, axis), value.shape[axis], axis)
        experts[name] = _checked(copies, value.shape, f"{path}.experts.{name}", problems)
    problems += [f"{path}: the dense feed-forward's {name!r} has no place in the experts" for name in sources]
    return {**tree, "experts": experts}


def _checked(value: Any, shape: tuple[int, ...], path: str, problems: list[str]) -> Any:
    if tuple(value.shape) != tuple(shape):
        problems.append(f"{path}: shape {tuple(value.shape)}, expected {tuple(shape)}")
    return value
