"""What an equation does with layouts: those it wants of its inputs, and those that its outputs then have.

A rule sees input layouts and answers with wanted ones; what lies between is collectives. Where inputs disagree, the
smaller one is moved, as partitioners do.
"""

import dataclasses
from collections.abc import Callable, Mapping

from kanawa_parallel.plan.quick.equations import ENTER, LEAVE, Equation, Value
from kanawa_parallel.plan.quick.layout import Layout, count_parts, layout_of_spec, local_bytes, replicated


@dataclasses.dataclass(frozen=True)
class Decision:
    """The layouts that an equation wants of its inputs, one each, and those of its outputs."""

    inputs: list[Layout]
    outputs: list[Layout]


@dataclasses.dataclass(frozen=True)
class Situation:
    """An equation with the layouts of its inputs, the mesh, and what later constraints want of its outputs."""

    equation: Equation
    layouts: list[Layout]
    mesh: Mapping[str, int]
    wanted: Layout | None

    def value(self, index: int) -> Value:
        """Returns an input; a literal counts as a scalar."""
        return self.equation.inputs[index] or _SCALAR


_SCALAR = Value(None)
Rule = Callable[[Situation], Decision]
#: Sums of products: a partial sum may go through, if only one factor is one.
_LINEAR = frozenset({"mul", "div", "neg", "convert_element_type", "copy", "copy_p", "name", "reduce_precision", "real"})
_SUMS = frozenset({"add", "add_any", "sub"})
#: Without inputs that lie anywhere: each device makes its own part.
_MADE = frozenset({"iota", "rng_bit_generator", "random_bits", "random_seed", "random_wrap", "random_unwrap"})


def decide_layouts(situation: Situation) -> Decision:
    """Returns what an equation wants and makes."""
    rule = _RULES.get(situation.equation.name)
    if rule is not None:
        return rule(situation)
    if situation.equation.name in _MADE or not any(situation.equation.inputs):
        return Decision(situation.layouts, [replicated(out, free=True) for out in situation.equation.outputs])
    return _elementwise(situation) if is_elementwise(situation.equation) else _replicated(situation)


def is_elementwise(eqn: Equation) -> bool:
    """Returns whether each element of the outputs follows from the elements of the same place (or of size 1)."""
    shape = eqn.outputs[0].shape if eqn.outputs else ()
    return all(out.shape == shape for out in eqn.outputs) and all(
        value is None or not value.shape or _spreads(value.shape, shape) for value in eqn.inputs
    )


def _spreads(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return len(small) == len(large) and all(a in (1, b) for a, b in zip(small, large, strict=True))


def summed(layout: Layout) -> Layout:
    """Returns a layout whose partial sums are added up."""
    return Layout(layout.dims) if layout.partial else layout


def cut_further(layout: Layout, target: Layout) -> Layout:
    """Returns a layout without partial sums that is cut further where `target` is and nothing is in the way."""
    used = set(layout.axes)
    dims = []
    for names, wanted in zip(layout.dims, target.dims, strict=True):
        extra = tuple(axis for axis in wanted if axis not in used) if wanted[: len(names)] == names else ()
        used.update(extra)
        dims.append((*names, *extra))
    return Layout(tuple(dims))


def _elementwise(s: Situation) -> Decision:
    eqn = s.equation
    full = [i for i, v in enumerate(eqn.inputs) if v is not None and len(v.shape) == len(eqn.outputs[0].shape)]
    layouts = [s.layouts[i] for i in full]
    fixed = [layout for layout in layouts if not layout.free]
    if not fixed:
        free = all(layout.free for layout in layouts) or not eqn.outputs[0].shape
        return Decision(s.layouts, [dataclasses.replace(replicated(out), free=free) for out in eqn.outputs])
    partials = [layout.partial for layout in fixed]
    through = (eqn.name in _SUMS and len(set(partials)) == 1 and len(fixed) == len(full)) or (
        eqn.name in _LINEAR and sum(bool(p) for p in partials) == 1
    )
    partial = frozenset().union(*partials) if through else frozenset()
    # The most finely cut input leads, the others follow: cutting further is free.
    leader = max(fixed, key=lambda layout: len(layout.axes) - 100 * bool(layout.partial and not through))
    dims = list(summed(dataclasses.replace(leader, partial=leader.partial - partial)).dims)
    used = {axis for names in dims for axis in names} | partial
    offers = [*(layout for layout in fixed if layout is not leader), *([s.wanted] if s.wanted and not through else [])]
    for other in offers:
        for at, names in enumerate(other.dims):
            extra = tuple(axis for axis in names if axis not in used)
            if extra and not dims[at] or extra and dims[at] == names[: len(dims[at])]:
                dims[at] = (*dims[at], *extra)
                used.update(extra)
    target = Layout(tuple(dims))
    out = Layout(target.dims, partial)
    inputs = list(s.layouts)
    for i in full:
        # A dimension of size 1 is spread over the others' parts.
        dims = [names if size > 1 else () for names, size in zip(target.dims, s.value(i).shape, strict=True)]
        inputs[i] = Layout(tuple(dims), s.layouts[i].partial if through else frozenset(), s.layouts[i].free)
    return Decision(inputs, [out for _ in eqn.outputs])


def _replicated(s: Situation) -> Decision:
    """For what no rule knows: outputs are cut along leading dimensions that an input shares, such as rows."""
    inputs = [summed(layout) for layout in s.layouts]
    outputs = []
    for out in s.equation.outputs:
        dims: list[tuple[str, ...]] = [()] * len(out.shape)
        for value, layout in zip(s.equation.inputs, inputs, strict=True):
            for at, names in enumerate(layout.dims):
                if value is None or at >= len(out.shape) or value.shape[at] != out.shape[at]:
                    break
                if names and not dims[at] and not any(set(names) & set(d) for d in dims):
                    dims[at] = names
        outputs.append(Layout(tuple(dims)))
    return Decision(inputs, outputs)


def _same(s: Situation) -> Decision:
    """Each output is its input, such as behind a barrier."""
    return Decision(s.layouts, list(s.layouts))


def _constraint(s: Situation) -> Decision:
    eqn, before = s.equation, s.layouts[0]
    open_dims = {at: before.dims[at] for at in eqn.params["unconstrained_dims"]}
    spec = getattr(eqn.params["sharding"], "spec", None)
    after = before if spec is None else layout_of_spec(s.value(0), spec, open_dims)
    after = Layout(after.dims)
    return Decision([after], [after])


def _enter(s: Situation) -> Decision:
    value = s.value(0)
    return Decision([layout_of_spec(value, s.equation.params["spec"])], [replicated(s.equation.outputs[0])])


def _leave(s: Situation) -> Decision:
    return Decision(s.layouts, [layout_of_spec(s.equation.outputs[0], s.equation.params["spec"])])


def _dot(s: Situation) -> Decision:
    ((left_sum, right_sum), (left_batch, right_batch)) = s.equation.params["dimension_numbers"]
    sides: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for letter, pairs in (("k", (left_sum, right_sum)), ("b", (left_batch, right_batch))):
        for number, dims in enumerate(zip(*pairs, strict=True)):
            for side, at in zip(sides, dims, strict=True):
                side[at] = f"{letter}{number}"
    order = [f"b{number}" for number in range(len(left_batch))]
    for side, letter, value in zip(sides, "mn", (s.value(0), s.value(1)), strict=True):
        for at in range(len(value.shape)):
            if at not in side:
                side[at] = f"{letter}{at}"
                order.append(side[at])
    layouts = [summed(layout) for layout in s.layouts]
    chosen = _factors(s, sides, layouts, order)
    inputs = [
        Layout(tuple(tuple(a for a, f in chosen.items() if f == side[at]) for at in range(len(layout.dims))))
        for side, layout in zip(sides, layouts, strict=True)
    ]
    inputs = [_ordered(new, old) for new, old in zip(inputs, layouts, strict=True)]
    split = tuple(tuple(a for a, f in chosen.items() if f == factor) for factor in order)
    return Decision(inputs, [Layout(split, frozenset(a for a, f in chosen.items() if f.startswith("k")))])


def _factors(
    s: Situation, sides: tuple[dict[int, str], dict[int, str]], layouts: list[Layout], order: list[str]
) -> dict[str, str]:
    """Returns which of the product's dimensions each mesh axis splits."""
    chosen: dict[str, str] = {}
    axes = dict.fromkeys(axis for layout in layouts for names in layout.dims for axis in names)
    for axis in axes:
        offered = [
            side[at] if (at := lay.place(axis)) is not None else None for side, lay in zip(sides, layouts, strict=True)
        ]
        factors = [factor for factor in offered if factor]
        if len(set(factors)) == 1:
            chosen[axis] = factors[0]
            continue
        at = None if s.wanted is None else s.wanted.place(axis)
        if at is not None and order[at] in factors:
            chosen[axis] = order[at]
            continue
        # The operand whose split is given up is gathered along it: the one with less to gather.
        sizes = [local_bytes(s.value(i), layouts[i], s.mesh) * s.mesh.get(axis, 1) for i in (0, 1)]
        chosen[axis] = str(offered[0] if sizes[0] >= sizes[1] else offered[1])
    return chosen


def _ordered(new: Layout, old: Layout) -> Layout:
    """Returns a layout with the axes of each dimension in the order that they had."""
    return Layout(
        tuple(
            (*(a for a in before if a in after), *(a for a in after if a not in before))
            for after, before in zip(new.dims, old.dims, strict=True)
        )
    )


def _transpose(s: Situation) -> Decision:
    before = s.layouts[0]
    dims = tuple(before.dims[at] for at in s.equation.params["permutation"])
    return Decision(s.layouts, [dataclasses.replace(before, dims=dims)])


def _broadcast(s: Situation) -> Decision:
    out = s.equation.outputs[0]
    if not s.layouts or not s.layouts[0].dims:
        return Decision(s.layouts, [replicated(out, free=True)])
    before = s.layouts[0]
    dims: list[tuple[str, ...]] = [()] * len(out.shape)
    for at, to in enumerate(s.equation.params["broadcast_dimensions"]):
        if s.value(0).shape[at] == out.shape[to]:
            dims[to] = before.dims[at]
    return Decision(s.layouts, [dataclasses.replace(before, dims=tuple(dims))])


def _reshape(s: Situation) -> Decision:
    value, out, before = s.value(0), s.equation.outputs[0], s.layouts[0]
    dims: list[tuple[str, ...]] = [()] * len(out.shape)
    kept: list[tuple[str, ...]] = [()] * len(value.shape)
    for inner, outer in _groups(value.shape, out.shape):
        # Of dimensions that are taken together, the outermost leads: only its split stays one.
        old = [at for at in inner if value.shape[at] > 1]
        new = [at for at in outer if out.shape[at] > 1]
        for a, b in zip(old[:1], new[:1], strict=False):
            names = before.dims[a]
            if out.shape[b] % count_parts(names, s.mesh) == 0:
                dims[b], kept[a] = names, names
    layout = Layout(tuple(kept), before.partial, before.free)
    return Decision([layout], [Layout(tuple(dims), before.partial, before.free)])


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Returns which dimensions of a reshape belong together: least groups of equal products."""
    if 0 in before or 0 in after:
        return []
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        left, right = ([i] if i < len(before) else []), ([j] if j < len(after) else [])
        a, b = (before[i] if left else 1), (after[j] if right else 1)
        i, j = i + len(left), j + len(right)
        while a != b:
            if a < b and i < len(before):
                a, i = a * before[i], i + 1
                left.append(i - 1)
            elif b < a and j < len(after):
                b, j = b * after[j], j + 1
                right.append(j - 1)
            else:
                break
        groups.append((left, right))
    return groups


def _reduce(s: Situation) -> Decision:
    before = s.layouts[0]
    axes = s.equation.params["axes"]
    gone = frozenset(axis for at in axes for axis in before.dims[at])
    dims = tuple(names for at, names in enumerate(before.dims) if at not in axes)
    # The largest of parts needs a collective as their sum does.
    linear = s.equation.name == "reduce_sum"
    inputs = [before if linear else summed(before)] + [summed(layout) for layout in s.layouts[1:]]
    partial = (before.partial if linear else frozenset()) | gone
    return Decision(inputs, [Layout(dims, partial, before.free) for _ in s.equation.outputs])


def _squeeze(s: Situation) -> Decision:
    before, gone = s.layouts[0], {at % len(s.value(0).shape) for at in s.equation.params["dimensions"]}
    dims = tuple(names for at, names in enumerate(before.dims) if at not in gone)
    return Decision(s.layouts, [dataclasses.replace(before, dims=dims)])


def _resized(s: Situation) -> Decision:
    """Slices, pads and joins: dimensions stay cut as they were where the parts still divide."""
    arrays = [
        i for i, v in enumerate(s.equation.inputs) if v is not None and len(v.shape) == len(s.equation.outputs[0].shape)
    ]
    fixed = [s.layouts[i] for i in arrays if not s.layouts[i].free] or [s.layouts[arrays[0]]]
    before = max(fixed, key=lambda layout: len(layout.axes))
    inputs = [
        Layout(before.dims, s.layouts[i].partial, s.layouts[i].free) if i in arrays else summed(layout)
        for i, layout in enumerate(s.layouts)
    ]
    outputs = []
    for out in s.equation.outputs:
        dims = tuple(
            names if size % count_parts(names, s.mesh) == 0 else ()
            for names, size in zip(before.dims, out.shape, strict=True)
        )
        outputs.append(Layout(dims, before.partial, before.free))
    return Decision(inputs, outputs)


def _update(s: Situation) -> Decision:
    target = s.layouts[1] if s.layouts[0].free and not s.layouts[1].free else s.layouts[0]
    same = tuple(
        names if new == old else ()
        for names, new, old in zip(target.dims, s.value(1).shape, s.value(0).shape, strict=True)
    )
    inputs = [Layout(same if target is s.layouts[1] else target.dims, free=s.layouts[0].free), Layout(same)]
    return Decision([*inputs, *(summed(layout) for layout in s.layouts[2:])], [Layout(inputs[0].dims)])


def _gather(s: Situation) -> Decision:
    numbers, out = s.equation.params["dimension_numbers"], s.equation.outputs[0]
    table, rows = summed(s.layouts[0]), summed(s.layouts[1])
    dims: list[tuple[str, ...]] = [()] * len(out.shape)
    batch = [at for at in range(len(out.shape)) if at not in numbers.offset_dims]
    for at, names in zip(batch, rows.dims[:-1], strict=False):
        dims[at] = names
    used = {axis for names in dims for axis in names}
    kept = [tuple(axis for axis in names if axis not in used) for names in table.dims]
    # Dimensions that table and indices share are walked together: both keep their cut.
    for at, index in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        kept[at] = rows.dims[index]
    taken = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    left = [at for at in range(len(table.dims)) if at not in taken]
    for to, at in zip(numbers.offset_dims, left, strict=False):
        dims[to] = kept[at] if s.value(0).shape[at] == out.shape[to] else ()
    partial = frozenset(axis for at in numbers.collapsed_slice_dims for axis in kept[at])
    return Decision([Layout(tuple(kept)), rows], [Layout(tuple(dims), partial)])


def _scatter(s: Situation) -> Decision:
    numbers = s.equation.params["dimension_numbers"]
    indices, updates = summed(s.layouts[1]), summed(s.layouts[2])
    shared = [indices.dims[at] for at in numbers.scatter_indices_batching_dims]
    together = {axis for names in shared for axis in names}
    windows = numbers.update_window_dims
    spread = {axis for at, names in enumerate(updates.dims) if at not in windows for axis in names} - together
    dims = [tuple(a for a in names if a not in spread | together) for names in summed(s.layouts[0]).dims]
    for at, names in zip(numbers.operand_batching_dims, shared, strict=True):
        dims[at] = names
    start = dataclasses.replace(s.layouts[0], dims=tuple(dims), partial=frozenset())
    partial = frozenset(spread) if s.equation.name == "scatter-add" else frozenset[str]()
    return Decision([start, indices, updates], [Layout(tuple(dims), partial)])


def _along(parameter: str) -> Rule:
    """Returns the rule of what runs along a dimension, which it wants whole: sorts, running sums, searches."""

    def rule(s: Situation) -> Decision:
        rank = len(s.value(0).shape)
        given = s.equation.params.get(parameter, rank - 1)
        whole_dims = {at % rank for at in (given if isinstance(given, (tuple, list)) else (given,))} if rank else set()
        lead = max(s.layouts, key=lambda layout: len(layout.axes))
        dims = tuple(() if at in whole_dims else names for at, names in enumerate(lead.dims))
        inputs = [Layout(dims, free=lay.free) if len(lay.dims) == rank else lay for lay in s.layouts]
        shorter = tuple(names for at, names in enumerate(dims) if at not in whole_dims)
        return Decision(inputs, [Layout(dims if len(out.shape) == rank else shorter) for out in s.equation.outputs])

    return rule


_RULES: dict[str, Rule] = {
    "optimization_barrier": _same,
    "sharding_constraint": _constraint,
    ENTER: _enter,
    LEAVE: _leave,
    "dot_general": _dot,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "gather": _gather,
    "dynamic_update_slice": _update,
    **dict.fromkeys(("scatter-add", "scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"), _scatter),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _along("axes")),
    **dict.fromkeys(("slice", "dynamic_slice", "pad", "concatenate", "split"), _resized),
    **dict.fromkeys(("cumsum", "cumlogsumexp", "cummax", "cummin", "cumprod"), _along("axis")),
    "sort": _along("dimension"),
    "top_k": _along("operand_axis"),
}
