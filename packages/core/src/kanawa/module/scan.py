"""`kn.scan`: a loop over layers or over data that carries the module context and returns its outputs explicitly."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from kanawa.errors import ModuleError
from kanawa.module.context import Context, current_context, run_detached
from kanawa.module.outputs import Outputs

#: A remat policy as `jax.checkpoint` takes it: None saves nothing but the inputs.
Policy = Callable[..., Any]


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    *,
    over: str | tuple[str, ...] | None = None,
    start: int = 0,
    length: int | None = None,
    unrolled: bool = False,
    unroll: int = 1,
    remat: "Policy | bool" = False,
) -> tuple[Any, Any]:
    """Runs `carry, y = body(carry, x)` for each x and returns (carry, stacked ys), like jax.lax.scan.

    `over` names a stacked child of the running module, or several: iteration i sees parameters, state and keys of
    layer start + i of each. `start` and `length` choose a window of the layers; the outputs of a window that doesn't
    start at 0 are joined to those of the windows before it.
    `remat` recomputes the body in the backward pass: True saves only its inputs, a policy says what else.
    `unrolled` writes the iterations out one by one; parameters may then also be a sequence of per-layer trees.
    Metrics and losses are reduced over iterations; state updates and emitted values are stacked. What modules offer
    is seen by those after them in the same iteration; it leaves the loop only where there is a single one.
    """
    context = current_context()
    context.check_trace("kn.scan is called")
    names = () if over is None else (over,) if isinstance(over, str) else tuple(over)
    length = _length(context, names, xs, start, length)
    params = {name: _window(context.params.get(name, {}), start, length) for name in names}
    state = {name: _window(context.state.get(name, {}), start, length) for name in names}
    step = _step(context, body, names, start, offers=length == 1)
    if remat is not False:
        policy = None if remat is True else remat
        step = jax.checkpoint(step, policy=policy, prevent_cse=unrolled)
    indices = jnp.arange(length)
    if unrolled:
        carry, ys, outputs = _unrolled(step, carry, xs, params, state, length)
    else:
        params = {name: _stacked(tree) for name, tree in params.items()}

        def scanned(c: Any, sliced: tuple[Any, ...]) -> tuple[Any, tuple[Any, Outputs]]:
            c, y, out = step(c, *sliced)
            return c, (y, out)

        carry, (ys, outputs) = jax.lax.scan(scanned, carry, (xs, params, state, indices), length=length, unroll=unroll)
        outputs = outputs.reduce_leading()
    # Only of a single iteration: of several, a loop would have to keep what each of them offers, or carry it along.
    outputs = dataclasses.replace(outputs, offered=jax.tree.map(lambda leaf: leaf[0], outputs.offered))
    context.collector.absorb(outputs, continued=start > 0)
    return carry, ys


def _step(
    context: Context, body: Callable[[Any, Any], Any], names: tuple[str, ...], start: int, *, offers: bool
) -> Callable[..., Any]:
    def step(carry: Any, x: Any, params: Any, state: Any, index: Any) -> tuple[Any, Any, Outputs]:
        if not names:
            key = None if context.key is None else context.key.fold("scan", index)
            (carry, y), outputs = run_detached(
                context, body, context.params, context.state, key, (carry, x), offers=offers
            )
            return carry, y, outputs
        (carry, y), outputs = run_detached(
            context,
            body,
            {**context.params, **params},
            {**context.state, **state},
            context.key,
            (carry, x),
            dict.fromkeys(names, start + index if start else index),
            offers=offers,
        )
        return carry, y, outputs

    return step


def _unrolled(
    step: Callable[..., Any], carry: Any, xs: Any, params: Any, state: Any, length: int
) -> tuple[Any, Any, Outputs]:
    ys, outputs = [], []
    for i in range(length):
        layer, kept = ({name: layer_slice(tree, i) for name, tree in trees.items()} for trees in (params, state))
        carry, y, out = step(carry, layer_slice(xs, i), layer, kept, i)
        ys.append(y)
        outputs.append(out)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)
    merged = jax.tree.map(lambda *leaves: jnp.stack(leaves), *_same_structure(outputs))
    return carry, stacked, merged.reduce_leading()


def _same_structure(outputs: list[Outputs]) -> list[Outputs]:
    """Returns the outputs with the union of all kernel choices each, so that their trees have one structure."""
    kernels = tuple(dict.fromkeys(choice for out in outputs for choice in out.kernels))
    return [dataclasses.replace(out, kernels=kernels) for out in outputs]


def layer_slice(tree: Any, index: int) -> Any:
    """Returns layer `index` of stacked arrays, or of a list or tuple with one tree a layer."""
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return tree[index]
    return jax.tree.map(lambda leaf: leaf[index], tree)


def unstack(tree: Mapping[str, Any], length: int) -> tuple[Any, ...]:
    """Returns the per-layer trees of stacked arrays; decoding does this once, outside of its loop."""
    return tuple(layer_slice(tree, i) for i in range(length))


def _stacked(tree: Any) -> Any:
    """Returns one stacked tree of a sequence of per-layer trees; any other tree as it is."""
    return jax.tree.map(lambda *layers: jnp.stack(layers), *tree) if isinstance(tree, Sequence) else tree


def _window(tree: Any, start: int, length: int) -> Any:
    """Returns `length` layers from `start` on; the tree itself where that is all of them."""
    if isinstance(tree, Sequence):
        return tree[start : start + length]
    return jax.tree.map(lambda leaf: leaf if leaf.shape[0] == length else leaf[start : start + length], tree)


def _length(context: Context, names: tuple[str, ...], xs: Any, start: int, length: int | None) -> int:
    found = {leaf.shape[0] for leaf in jax.tree.leaves(xs)}
    for name in names:
        child = context.module.children.get(name)
        if child is None or child.num_stacked is None:
            message = f"{context.module.path}: kn.scan(over={name!r}) needs a child declared with stacked=…"
            raise ModuleError(message)
        left = child.num_stacked - start
        found.add(left if length is None or left < length else length)
    if length is not None:
        found.add(length)
    if len(found) != 1:
        message = (
            f"{context.module.path}: kn.scan needs one length; found {sorted(found) or 'none'} "
            f"from xs, length and over={', '.join(names) or None!r}"
        )
        raise ModuleError(message)
    return found.pop()
