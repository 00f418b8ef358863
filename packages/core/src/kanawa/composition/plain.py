"""Between a tuned or quantised model and the plain one it was made from: configs, and parameters both ways."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa.arrays.tree import Tree, flatten_paths, unflatten_paths
from kanawa.config import Config, replace
from kanawa.contracts.weights import Adapter, AdapterPool, Weighted, WeightForm
from kanawa.errors import ModuleError, did_you_mean
from kanawa.module import Module, initialize, param_specs


def plain_config(cfg: Config) -> Config:
    """Returns a copy without any weight form or adapter: the model whose checkpoints and names others know."""

    def clear(node: Config) -> None:
        for slot in ("form", "adapter"):
            if slot in node.fields():
                node.set(**{slot: None})

    cfg = cfg.clone()
    replace(cfg, target=Weighted, edit=clear, allow_none=True)
    return cfg


def from_plain(module: Module, plain: Mapping[str, Any], key: jax.Array) -> Tree:
    """Returns the module's parameters with the values of a plain model's.

    Weights are brought into their forms; adapters are drawn from `key`, so the result computes what the plain model
    does, up to quantisation. Raises ModuleError naming every parameter that only one side has, or of another shape.
    """
    specs, dense_arrays = flatten_paths(param_specs(module)), flatten_paths(plain)
    made: dict[str, Any] = {}
    drawn: set[str] = set()
    for path, node, depth in _weighted(module):
        for name, spec in node.weight_specs.items():
            if node.adapter_of(name) is not None:
                below = _join(path, "adapter") + "."
                drawn.update(p for p in specs if p.startswith(below))
            if node.form is None or _join(path, name) not in dense_arrays:
                continue
            # A form knows one layer's weight; stacked ones have a leading axis for each stack above them.
            store = _over_layers(lambda w, n=node, s=spec: n.form.store(w, s), depth)
            for suffix, array in store(dense_arrays.pop(_join(path, name))).items():
                made[_join(path, name + suffix)] = array
    # A list, because popping changes what is iterated; what is left in `dense_arrays` isn't in the module.
    made.update({path: dense_arrays.pop(path) for path in list(dense_arrays) if path in specs and path not in drawn})
    _check_all_made(specs, made, dense_arrays, drawn)
    if drawn:
        # Under jit the compiler drops the draws of everything else: initialising a large model for its adapters would
        # not fit.
        def adapters(key: jax.Array) -> dict[str, jax.Array]:
            return {path: leaf for path, leaf in flatten_paths(initialize(module, key)).items() if path in drawn}

        made.update(jax.jit(adapters)(key))
    return unflatten_paths({path: made[path] for path in specs})


def to_plain(module: Module, params: Mapping[str, Any]) -> Tree:
    """Returns the plain model's parameters: adapters merged into their weights, every weight dense and fp32."""
    flat = flatten_paths(params)
    for path, node, depth in _weighted(module):
        for name, spec in node.weight_specs.items():
            stored = {suffix: flat.pop(_join(path, name + suffix)) for suffix in node.stored_specs(name)}
            adapter, below = node.adapter_of(name), _join(path, "adapter") + "."
            own = {p.removeprefix(below): flat.pop(p) for p in list(flat) if adapter and p.startswith(below)}

            def dense(stored: Any, own: Any, node: Any = node, spec: Any = spec, adapter: Any = adapter) -> jax.Array:
                weight = stored[""] if node.form is None else node.form.dense(stored, spec, jnp.float32)
                out: jax.Array = weight if adapter is None else adapter.merged(own, weight)
                return out

            flat[_join(path, name)] = _over_layers(dense, depth)(stored, own)
    return unflatten_paths(flat)


def adapter_factors(module: Module, params: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the factors of each adapted projection by its path; stacked ones have their stack's leading axes.

    Host arrays: adapters are put into a server that runs, which must not compile. Raises ModuleError for an adapter
    that is no product of two factors.
    """
    flat, factors = flatten_paths(params), {}
    for path, node, depth in _weighted(module):
        for name in node.weight_specs:
            adapter, below = node.adapter_of(name), _join(path, "adapter") + "."
            if adapter is None:
                continue
            own = {p.removeprefix(below): np.asarray(leaf) for p, leaf in flat.items() if p.startswith(below)}
            made = _factors(adapter, own, depth)
            if made is None:
                message = (
                    f"{below.removesuffix('.')} is a {type(adapter).__name__}, whose change of the weight is no "
                    "product of two factors, which an adapter pool needs: merge it into the weights"
                )
                raise ModuleError(message)
            factors[path] = made
    return factors


def with_adapter_factors(module: Module, params: Mapping[str, Any], factors: Mapping[str, tuple[Any, Any]]) -> Tree:
    """Returns parameters with stored factors, by the path of their projection, in the module's own adapters.

    Other adapters stay as they are. Raises ModuleError for a projection without an adapter, for one that is no product
    of two factors, and for a higher rank.
    """
    flat, left = dict(flatten_paths(params)), dict(factors)
    for path, node, _ in _weighted(module):
        for name in node.weight_specs:
            adapter, below = node.adapter_of(name), _join(path, "adapter") + "."
            if adapter is None or path not in left:
                continue
            own = {p.removeprefix(below): np.asarray(leaf) for p, leaf in flat.items() if p.startswith(below)}
            made = adapter.with_factors(own, *left.pop(path))
            if made is None:
                message = f"{below}: a {type(adapter).__name__} can't take the factors of a stored adapter; take lora"
                raise ModuleError(message)
            flat |= {below + part: leaf for part, leaf in made.items()}
    if left:
        message = (
            f"the stored adapter changes {', '.join(sorted(left))}, and the model has no adapter there; name these "
            "among the targets, or leave targets out: --modify lora"
        )
        raise ModuleError(message)
    return unflatten_paths(flat)


def _factors(adapter: Adapter, own: Mapping[str, np.ndarray], depth: int) -> tuple[Any, Any] | None:
    if depth == 0:
        return adapter.factors(own)
    count = min(leaf.shape[0] for leaf in own.values())
    layers = [_factors(adapter, {p: leaf[i] for p, leaf in own.items()}, depth - 1) for i in range(count)]
    pairs = [pair for pair in layers if pair is not None]
    return (np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs])) if pairs else None


def adapter_pools(module: Module) -> dict[str, tuple[AdapterPool, int]]:
    """Returns each adapter pool with the number of stacks around it, by the path of the projection it changes."""
    pools = {}
    for path, node, depth in _weighted(module):
        for name in node.weight_specs:
            adapter = node.adapter_of(name)
            if isinstance(adapter, AdapterPool):
                pools[path] = adapter, depth
    return pools


def in_forms(module: Module, params: Mapping[str, Any], kind: type[WeightForm]) -> Tree:
    """Returns the parameters with the weights whose form is a `kind`, passed dense, as the form stores them.

    Only for forms that store a weight as one array under its own path; everything else is unchanged.
    """
    flat = dict(flatten_paths(params))
    for path, node, depth in _weighted(module):
        if isinstance(node.form, kind):
            for name, spec in node.weight_specs.items():
                store = _over_layers(lambda w, n=node, s=spec: n.form.store(w, s)[""], depth)
                flat[_join(path, name)] = store(flat[_join(path, name)])
    return unflatten_paths(flat)


def is_tuned(module: Module) -> bool:
    """Returns whether some weight of the module has another form or an adapter."""
    return any(
        node.form is not None or any(map(node.adapter_of, node.weight_specs)) for _, node, _ in _weighted(module)
    )


def _weighted(module: Module, path: str = "", depth: int = 0) -> Iterator[tuple[str, Weighted, int]]:
    """Yields path, module and number of stacked axes of everything that declares weights."""
    if isinstance(module, Weighted):
        yield path, module, depth
    for name, child in module.children.items():
        yield from _weighted(child, _join(path, name), depth + (child.num_stacked is not None))


def _over_layers(function: Callable[..., Any], depth: int) -> Callable[..., Any]:
    for _ in range(depth):
        function = jax.vmap(function)
    return function


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check_all_made(
    specs: Mapping[str, Any], made: Mapping[str, Any], left: Mapping[str, Any], drawn: set[str]
) -> None:
    missing = sorted(specs.keys() - made.keys() - drawn)
    shapes = [
        f"{path} is {made[path].shape}, expected {spec.shape}"
        for path, spec in specs.items()
        if path in made and made[path].shape != spec.shape
    ]
    if not missing and not left and not shapes:
        return
    near = did_you_mean(next(iter(left)), missing) if left and missing else ""
    message = (
        "the plain model's parameters don't fit the model:\n"
        f"  missing: {', '.join(missing) or 'nothing'}\n"
        f"  unexpected: {', '.join(sorted(left)) or 'nothing'}{near}\n"
        f"  of another shape: {'; '.join(shapes) or 'nothing'}"
    )
    raise ModuleError(message)
