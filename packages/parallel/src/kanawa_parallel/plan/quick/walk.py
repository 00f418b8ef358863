"""Lays out a traced program on a mesh: every value's layout, and the collectives in between.

Layouts run forwards from the arguments; what later constraints want of a value runs backwards first, since partitioners
know it too. A loop's carry takes the layout that its body gives it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from kanawa_parallel.plan.quick.equations import ENTER, LEAVE, Equation, Scope, Value, flat_scope, scan_parts
from kanawa_parallel.plan.quick.layout import (
    Layout,
    Move,
    count_parts,
    layout_of_spec,
    local_bytes,
    local_shape,
    moves_between,
    replicated,
)
from kanawa_parallel.plan.quick.rules import Situation, cut_further, decide_layouts, summed

#: Collectives that a program asks for itself, inside shards, by the names that JAX gives them.
_COLLECTIVES = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "pmax", "pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all-gather"),
    **dict.fromkeys(("reduce_scatter", "psum_scatter"), "reduce-scatter"),
    **dict.fromkeys(("all_to_all", "ragged_all_to_all"), "all-to-all"),
    "ppermute": "collective-permute",
}
#: What changes neither values nor their order: another name for the same memory.
SAME = frozenset(
    ("name", "reduce_precision", "optimization_barrier", "sharding_constraint", "reshape", "squeeze", "transpose")
    + ("copy", "copy_p", "stop_gradient", "expand_dims", ENTER, LEAVE, "dynamic_update_slice", "reshard", "pvary")
)
#: Rounds in which a loop's carry finds its layout: each round can only cut more dimensions.
_ROUNDS = 3


@dataclasses.dataclass(eq=False)
class Step:
    """One equation on the mesh: the layouts that it takes its inputs in, collectives before it, and scopes inside with
    how often each runs.
    """

    equation: Equation
    inputs: list[Layout]
    moves: list[tuple[int, Move]]
    inner: list[tuple[float, "Walked"]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Walked:
    """A scope on the mesh; `closing` are the collectives that its outputs need."""

    scope: Scope
    mesh: Mapping[str, int]
    layouts: dict[Value, Layout]
    steps: list[Step]
    outputs: list[Layout]
    closing: list[tuple[Value, Move]]
    carried: tuple[Value, ...] = ()

    def bytes(self, value: Value) -> float:
        """Returns what a device holds of a value; nothing of what lies in the host's memory."""
        return 0.0 if value.host else local_bytes(value, self.layouts[value], self.mesh)


def lay_out(
    scope: Scope, arguments: Iterable[Layout], mesh: Mapping[str, int], wanted: Iterable[Layout | None]
) -> Walked:
    """Returns the scope laid out, from the layouts of its inputs and those wanted of its outputs."""
    goals = list(wanted)
    wishes = _wishes(scope, goals)
    layouts = dict(zip(scope.inputs, arguments, strict=True))
    steps = []
    for eqn in scope.equations:
        given = [_SCALAR if v is None else layouts.setdefault(v, replicated(v)) for v in eqn.inputs]
        step, outputs = _step(eqn, given, mesh, [wishes.get(out) for out in eqn.outputs])
        steps.append(step)
        layouts.update(zip(eqn.outputs, outputs, strict=True))
        for value, taken in zip(eqn.inputs, step.inputs, strict=True):
            # A constant is made as its reader wants it.
            if value is not None and layouts[value].free and (not taken.free or any(taken.dims)):
                layouts[value] = taken
    outputs, closing = [], []
    for value, goal in zip(scope.outputs, goals, strict=True):
        before = _SCALAR if value is None else layouts.setdefault(value, replicated(value))
        fits = goal is not None and len(goal.dims) == len(before.dims)
        after = before if before.free else cut_further(before, goal) if fits and goal is not None else summed(before)
        outputs.append(after)
        closing += [(value, move) for move in moves_between(value, before, after, mesh)] if value is not None else []
    return Walked(scope, mesh, layouts, steps, outputs, closing)


_SCALAR = Layout((), free=True)


def _wishes(scope: Scope, goals: list[Layout | None]) -> dict[Value, Layout]:
    """Returns the layouts that constraints further on want, through what keeps the shape."""
    wishes = {v: goal for v, goal in zip(scope.outputs, goals, strict=True) if v is not None and goal is not None}
    for eqn in reversed(scope.equations):
        if eqn.name == "sharding_constraint":
            spec = getattr(eqn.params["sharding"], "spec", None)
            if spec is not None and eqn.inputs[0] is not None and not eqn.params["unconstrained_dims"]:
                wishes[eqn.inputs[0]] = layout_of_spec(eqn.inputs[0], spec)
        elif eqn.name == ENTER and eqn.inputs[0] is not None:
            wishes[eqn.inputs[0]] = layout_of_spec(eqn.inputs[0], eqn.params["spec"])
        elif eqn.name == "transpose" and eqn.outputs[0] in wishes and eqn.inputs[0] is not None:
            dims: list[tuple[str, ...]] = [()] * len(eqn.inputs[0].shape)
            for names, at in zip(wishes[eqn.outputs[0]].dims, eqn.params["permutation"], strict=True):
                dims[at] = names
            wishes.setdefault(eqn.inputs[0], Layout(tuple(dims)))
        elif eqn.name not in ("dot_general", "scan", "while", "cond", LEAVE):
            wish = next((wishes[out] for out in eqn.outputs if out in wishes), None)
            for value in eqn.inputs if wish is not None else ():
                if value is not None and value.shape == eqn.outputs[0].shape and wish is not None:
                    wishes.setdefault(value, wish)
    return wishes


def _step(
    eqn: Equation, given: list[Layout], mesh: Mapping[str, int], wanted: list[Layout | None]
) -> tuple[Step, list[Layout]]:
    if eqn.name in _COLLECTIVES:
        return _collective(eqn, given)
    if eqn.name == "scan":
        return _scan(eqn, given, mesh, wanted)
    if eqn.name in ("while", "cond"):
        return _branches(eqn, given, mesh, wanted)
    decision = decide_layouts(Situation(eqn, given, mesh, wanted[0] if wanted else None))
    return Step(eqn, decision.inputs, _moves(eqn, given, decision.inputs, mesh)), decision.outputs


def _moves(eqn: Equation, before: list[Layout], after: list[Layout], mesh: Mapping[str, int]) -> list[tuple[int, Move]]:
    return [
        (at, move)
        for at, (value, old, new) in enumerate(zip(eqn.inputs, before, after, strict=True))
        if value is not None and old != new
        for move in moves_between(value, old, new, mesh)
    ]


def _collective(eqn: Equation, given: list[Layout]) -> tuple[Step, list[Layout]]:
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    axes = tuple(str(axis) for axis in (named if isinstance(named, (tuple, list)) else (named,)))
    if eqn.name == "ragged_all_to_all" and eqn.inputs[0] is not None:
        # Its other operands are counts and offsets. Of room for more rows than an even load only that many are sent.
        sent = min(eqn.inputs[0].bytes, eqn.outputs[0].bytes)
        return Step(eqn, given, [(0, Move("all-to-all", axes, sent))]), [replicated(out) for out in eqn.outputs]
    needed = [(at, Move(_COLLECTIVES[eqn.name], axes, value.bytes)) for at, value in enumerate(eqn.inputs) if value]
    return Step(eqn, given, needed), [replicated(out) for out in eqn.outputs]


def _scan(
    eqn: Equation, given: list[Layout], mesh: Mapping[str, int], wanted: list[Layout | None]
) -> tuple[Step, list[Layout]]:
    consts, carried = scan_parts(eqn.params)
    body = flat_scope(eqn.params["jaxpr"], eqn.path)
    hidden = [replicated(v, free=True) for v in body.inputs[: len(body.inputs) - len(given)]]
    before, given = given, [summed(layout) for layout in given]
    slices = [Layout(layout.dims[1:], layout.partial, layout.free) for layout in given[consts + carried :]]
    goals = [*wanted[:carried], *(w and Layout(w.dims[1:]) for w in wanted[carried:])]
    carry = given[consts : consts + carried]
    walked = None
    for _ in range(_ROUNDS):
        walked = lay_out(body, [*hidden, *given[:consts], *carry, *slices], mesh, goals)
        left = [Layout(new.dims, free=old.free and new.free) for new, old in zip(walked.outputs, carry, strict=False)]
        if left == carry:
            break
        carry = left
    if walked is not None:
        walked.carried = tuple(body.inputs[len(hidden) + consts :][:carried])
    fixed = given[:consts] if walked is None else _as_read(given[:consts], body.inputs[len(hidden) :], walked)
    inputs = [*fixed, *carry, *given[consts + carried :]]
    stacked = walked.outputs[carried:] if walked else []
    outputs = [*carry, *(Layout(((), *layout.dims), layout.partial, layout.free) for layout in stacked)]
    for outer, inner in zip(eqn.outputs, body.outputs, strict=True):
        # What a body sends to the host is stacked there.
        outer.host = outer.host or (inner is not None and inner.host)
    step = Step(
        eqn, inputs, _moves(eqn, before, inputs, mesh), [(float(eqn.params["length"]), walked)] if walked else []
    )
    return step, outputs


def _as_read(given: list[Layout], inner: list[Value], walked: Walked) -> list[Layout]:
    """Returns the layouts of a scope's inputs, constants among them as their readers inside want them."""
    return [walked.layouts[value] if before.free else before for before, value in zip(given, inner, strict=False)]


def _branches(
    eqn: Equation, given: list[Layout], mesh: Mapping[str, int], wanted: list[Layout | None]
) -> tuple[Step, list[Layout]]:
    before, given = given, [summed(layout) for layout in given]
    if eqn.name == "while":
        # How often it runs depends on values; loops over layers and microbatches are scans.
        skipped = eqn.params["cond_nconsts"]
        bodies, arguments = [eqn.params["body_jaxpr"]], given[skipped:]
    else:
        bodies, arguments = list(eqn.params["branches"]), given[1:]
    walks = []
    for body in bodies:
        scope = flat_scope(body, eqn.path)
        hidden = [replicated(v, free=True) for v in scope.inputs[: len(scope.inputs) - len(arguments)]]
        walks.append(lay_out(scope, [*hidden, *arguments], mesh, wanted))
    outputs = [
        next((w.outputs[at] for w in walks if not w.outputs[at].free), walks[0].outputs[at])
        for at in range(len(eqn.outputs))
    ]
    outputs = [
        replicated(v) if len(out.dims) != len(v.shape) else out for v, out in zip(eqn.outputs, outputs, strict=True)
    ]
    # One branch runs; which one no shape says. All are kept, and the costliest is counted.
    return Step(eqn, given, _moves(eqn, before, given, mesh), [(1.0, walked) for walked in walks]), outputs


def flops(step: Step, mesh: Mapping[str, int]) -> float:
    """Returns a device's FLOPs of a matmul or convolution; 0 for anything else."""
    eqn = step.equation
    if eqn.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left, right = (_local(eqn.inputs[i], step.inputs[i], mesh) for i in (0, 1))
        batch = eqn.params["dimension_numbers"][1]
        summed_over = math.prod(left[at] for at in contracted)
        shared = math.prod(left[at] for at in batch[0])
        return float(2 * math.prod(left) * math.prod(right) / max(1, summed_over * shared))
    if eqn.name == "conv_general_dilated" and eqn.inputs[1] is not None:
        numbers = eqn.params["dimension_numbers"]
        kernel = eqn.inputs[1].shape
        outputs = eqn.outputs[0]
        taps = math.prod(kernel) / max(1, kernel[numbers.rhs_spec[0]])
        return float(2 * math.prod(outputs.shape) * taps / count_parts(step.inputs[0].axes, mesh))
    return 0.0


def _local(value: Value | None, layout: Layout, mesh: Mapping[str, int]) -> tuple[int, ...]:
    return () if value is None else local_shape(value, layout, mesh)
