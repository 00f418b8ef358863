"""`kn.scan`: a loop over layers or over data that carries the module context and returns its outputs explicitly."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from kanawa.arrays.plan import current_plan
from kanawa.errors import ModuleError
from kanawa.module.context import Context, join_path
from kanawa.module.detached import Scope, is_below, value_at
from kanawa.module.outputs import Outputs, counted

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
    `unrolled` writes the iterations out one by one; parameters may then also be a sequence of per-layer trees. So are
    loops over no more layers than the `unrolled_layers` of the plan's traits.
    Metrics and losses are reduced over iterations, and emitted values are stacked. State of a child in `over` has a
    layer axis; any other state goes from one iteration to the next, and has the last one's value in the end.
    What modules offer is seen by those after them in the same iteration; it leaves the loop only where there is one.
    """
    names = () if over is None else (over,) if isinstance(over, str) else tuple(over)
    # A later window draws under the paths of an earlier one, from keys of other layers.
    scope = Scope("kn.scan", layers=names if start else ())
    context = scope.context
    length = _length(context, names, xs, start, length)
    unrolled = unrolled or (bool(names) and length <= current_plan().traits.unrolled_layers)
    # With the updates made so far, by windows before this one too: layers' state isn't read from the input again.
    whole = context.current_state()
    params = {name: _window(context.params.get(name, {}), start, length) for name in names}
    state = {name: _window(_stacked(whole.get(name, {})), start, length) for name in names}
    step = _step(scope, body, names, start, {**whole}, offers=length == 1)
    if remat is not False:
        policy = None if remat is True else remat
        # Inside lax.scan the compiler can't merge the two computations anyway; unrolled, it would.
        step = jax.checkpoint(step, policy=policy, prevent_cse=unrolled)
    if unrolled:
        run = functools.partial(_unrolled, step, carry, xs, params, state, length)
    else:
        params = {name: _stacked(tree) for name, tree in params.items()}
        run = functools.partial(_scanned, step, carry, (xs, params, state, jnp.arange(length)), length, unroll)
    carry, ys, outputs, carried = scope.repeated(run)
    # Only of a single iteration: of several, a loop would have to keep what each of them offers, or carry it along.
    offered = jax.tree.map(lambda leaf: leaf[0], outputs.offered)
    layers = outputs.state
    if any(context.module.children[name].num_stacked != length for name in names):
        layers = {path: _in_place(context, path, x, start) for path, x in layers.items()}
    scope.finish(dataclasses.replace(outputs, state={**layers, **carried}, offered=offered), continued=start > 0)
    return carry, ys


def _step(
    scope: Scope,
    body: Callable[[Any, Any], Any],
    names: tuple[str, ...],
    start: int,
    state: Mapping[str, Any],
    *,
    offers: bool,
) -> Callable[..., Any]:
    """Returns the body as a function of everything that changes between iterations; its state is the layers' alone."""
    context = scope.context
    tops = tuple(join_path(context.home, name) for name in names)

    def step(carry: Any, x: Any, layer: Any, own: Any, index: Any, carried: Any) -> tuple[Any, Any, Outputs, Any]:
        key = context.key
        if not names and key is not None:
            # Layers have their own keys by index; a loop over data has only this.
            key = key.fold("scan", index)
        (carry, y), outputs = scope.run(
            body,
            {**context.params, **layer},
            {**state, **own},
            key,
            (carry, x),
            layer_index=dict.fromkeys(names, start + index if start else index),
            carried=carried,
            offers=offers,
        )
        # A layer's state leaves the loop stacked, with a layer axis; any other is one array, handed on from layer to
        # layer.
        mine = {path: value for path, value in outputs.state.items() if is_below(path, tops)}
        others = {path: value for path, value in outputs.state.items() if path not in mine}
        return carry, y, dataclasses.replace(outputs, state=mine), scope.next_carried(others, carried)

    return step


def _scanned(
    step: Callable[..., Any], carry: Any, xs: tuple[Any, ...], length: int, unroll: int, carried: dict[str, Any]
) -> tuple[Any, Any, Outputs, Any]:
    def one(held: tuple[Any, Any], sliced: tuple[Any, ...]) -> tuple[Any, Any]:
        c, y, outputs, after = step(held[0], *sliced, held[1])
        return (c, after), (y, outputs)

    (carry, carried), (ys, outputs) = jax.lax.scan(one, (carry, carried), xs, length=length, unroll=unroll)
    return carry, ys, outputs.reduce_leading().repeated(length), carried


def _unrolled(
    step: Callable[..., Any], carry: Any, xs: Any, params: Any, state: Any, length: int, carried: dict[str, Any]
) -> tuple[Any, Any, Outputs, Any]:
    ys, outputs = [], []
    layers = {name: _apart(tree, length) for name, tree in params.items()}
    for i in range(length):
        layer = {name: trees[i] for name, trees in layers.items()}
        own = {name: layer_slice(tree, i) for name, tree in state.items()}
        carry, y, out, carried = step(carry, layer_slice(xs, i), layer, own, i, carried)
        ys.append(y)
        outputs.append(out)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)
    # Kernel choices are part of the tree's structure, and windowed layers choose others than full ones.
    merged = jax.tree.map(lambda *leaves: jnp.stack(leaves), *_same_structure(outputs))
    return carry, stacked, merged.reduce_leading(), carried


def _in_place(context: Context, path: str, window: jax.Array, start: int) -> jax.Array:
    """Returns the state of all layers, of which `window` holds the updated ones from layer `start` on."""
    whole = value_at(context, path)
    if whole.shape == window.shape:
        return window
    return jax.lax.dynamic_update_slice_in_dim(whole, window, start, axis=0)


def _same_structure(outputs: list[Outputs]) -> list[Outputs]:
    """Returns the outputs with the union of all kernel choices each, so that their trees have one structure."""
    kernels = counted(choice for out in outputs for choice in out.kernels)
    return [dataclasses.replace(out, kernels=kernels) for out in outputs]


def layer_slice(tree: Any, index: int) -> Any:
    """Returns layer `index` of stacked arrays, or of a list or tuple with one tree a layer."""
    # A named tuple is a pytree of arrays (xs), not a sequence with a tree for each layer.
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return tree[index]
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _apart(tree: Any, length: int) -> Sequence[Any]:
    """Returns the per-layer trees of stacked arrays, or of a sequence of them.

    Not by slices: the gradient of each is a whole stack of zeros but for one layer, and all of those are added.
    """
    if isinstance(tree, Sequence):
        return tree
    leaves, structure = jax.tree.flatten(tree)
    split = [[layer[0] for layer in jax.lax.split(leaf, (1,) * length)] for leaf in leaves]
    return [jax.tree.unflatten(structure, [layers[i] for layers in split]) for i in range(length)]


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
    lengths: set[int] = {leaf.shape[0] for leaf in jax.tree.leaves(xs)}
    for name in names:
        child = context.module.children.get(name)
        if child is None or child.num_stacked is None:
            message = f"{context.module.path}: kn.scan(over={name!r}) needs a child declared with stacked=…"
            raise ModuleError(message)
        left = child.num_stacked - start
        lengths.add(left if length is None or left < length else length)
    if length is not None:
        lengths.add(length)
    if len(lengths) != 1:
        message = (
            f"{context.module.path}: kn.scan needs one length; found {sorted(lengths) or 'none'} "
            f"from xs, length and over={', '.join(names) or None!r}"
        )
        raise ModuleError(message)
    return lengths.pop()
