"""What a step takes that keeps or sends away some of its activations, or takes its batch in slices, from one trace.

The traced step recomputes all of each layer in its backward pass. What a kept activation spares there, and which
others nobody needs then, follows from the trace; a kept one takes its bytes for every layer. Slices divide what
depends on the batch and repeat what moves parameters.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence, Set

import jax

from kanawa_parallel.plan.memory.arguments import argument_bytes, local_bytes
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import Value
from kanawa_parallel.plan.quick.estimate import Estimate
from kanawa_parallel.plan.quick.roofline import HOST_BANDWIDTH, Roofline


@dataclasses.dataclass(frozen=True)
class Kept:
    """Tags of activations that the backward pass has: on the device, or fetched from the host's memory."""

    save: frozenset[str] = frozenset()
    offload: frozenset[str] = frozenset()


#: Nothing but each layer's input: all of it is recomputed.
_NOTHING = Kept()


@dataclasses.dataclass(frozen=True)
class Guess:
    """Seconds of a step and bytes of a device, as they would be."""

    seconds: float
    memory_bytes: float


class Sketch:
    """One traced step; `tags` are the names of what its backward pass recomputes and could keep."""

    def __init__(self, estimate: Estimate) -> None:
        """Finds the loops of the step and what they would spare."""
        # Of a pipeline, one microbatch through a stage.
        top = estimate.times if isinstance(estimate.times, Roofline) else estimate.times.alone
        self._rates = top.rates
        self._bandwidth = self._rates.machine.memory_bandwidth * self._rates.memory_factor
        self._peak = estimate.memory.peak
        self._arguments = float(sum(argument_bytes(estimate.program.fn, estimate.program.abstract_args).values()))
        self._gradients, shapes = _parameters(estimate)
        held = sum(buffer.bytes for buffer in estimate.memory.at_peak if buffer.value.shape in shapes)
        #: What doesn't depend on the batch: the state, gradients, gathered parameters.
        self.fixed_bytes = self._arguments + held
        self._scopes = list(_scopes(top))
        self._layers = [_Layers(at, loop, outer) for at, (loop, outer) in enumerate(self._scopes) if _tags(loop)]
        #: Where each loop's activations are made, as often as they are read again.
        self._made_in = [_maker(layers, self._scopes) for layers in self._layers]
        self._totals = functools.cache(self._added)
        self.tags = sorted({tag for layers in self._layers for tag in layers.bytes})

    def guess(self, kept: Kept = _NOTHING, microbatches: int = 1) -> Guess:
        """Returns what a step takes that keeps these activations, with its batch in so many slices."""
        have = kept.save | kept.offload
        hidden_cost = self._rates.machine.calibration.hidden_cost
        added = [[*totals] for totals in self._totals(have)]
        for layers, made_in in zip(self._layers, self._made_in, strict=True):
            for at in (made_in, layers.at):
                # Written once and read once; what leaves the device goes beside the loop's own work.
                added[at][0] += sum(layers.bytes.get(tag, 0.0) for tag in have) / self._bandwidth
                added[at][1] += sum(layers.bytes.get(tag, 0.0) for tag in kept.offload) / HOST_BANDWIDTH / microbatches
        seconds = 0.0
        for compute, early, waited in added:
            beyond = max(0.0, early * microbatches - compute)
            seconds += compute + hidden_cost * (early * microbatches - beyond) + beyond + waited
        return Guess(seconds, self._memory(kept, microbatches))

    def least_seconds(self) -> float:
        """Returns what a step would take that recomputes nothing with a name and waits for nothing."""
        return sum(compute for compute, _, _ in self._totals(frozenset(self.tags)))

    def _added(self, have: frozenset[str]) -> list[tuple[float, float, float]]:
        """Returns each scope's seconds of its own passes, of collectives beside them, and of those waited for."""
        sums = []
        dead_at = {layers.at: layers.dead(have) for layers in self._layers}
        for at, (loop, _) in enumerate(self._scopes):
            dead = dead_at.get(at, frozenset())
            compute = sum(spent for step, spent in loop.spent if step not in dead)
            sent = [item for step, item in loop.moves if step not in dead]
            early = sum(item.seconds for item in sent if not item.exposed_seconds)
            sums.append((compute, early, sum(item.exposed_seconds for item in sent)))
        return sums

    def _memory(self, kept: Kept, microbatches: int) -> float:
        have = kept.save | kept.offload
        extra = sum(layers.bytes.get(tag, 0.0) for layers in self._layers for tag in kept.save)
        spared = sum(layers.spared_inputs(have) for layers in self._layers)
        activations = max(0.0, self._peak - (self.fixed_bytes - self._arguments) + extra - spared) / microbatches
        # Gradients are summed beside those of a slice.
        sums = self._gradients if microbatches > 1 else 0.0
        return self.fixed_bytes + activations + sums


class _Layers:
    """A backward loop over layers: what each tag takes on a device for all of them, and what it spares."""

    def __init__(self, at: int, loop: Roofline, outer: Roofline | None) -> None:
        self.at, self.loop, self._outer = at, loop, outer
        self._turns = 1.0 if outer is None else loop.runs / outer.runs
        self.bytes: dict[str, float] = {}
        walked = loop.walked
        for step in walked.steps:
            tag = _tag(step.equation)
            if tag:
                size = walked.bytes(step.equation.outputs[0]) * self._turns
                self.bytes[tag] = self.bytes.get(tag, 0.0) + size
        self.dead = functools.cache(self._dead)
        self.spared_inputs = functools.cache(self._spared_inputs)

    def _live(self, have: Set[str]) -> tuple[set[int], set[Value]]:
        """Returns the steps that still run, and the values that they read."""
        scope = self.loop.walked.scope
        needed = {value for value in scope.outputs if value is not None}
        live: set[int] = set()
        for at in range(len(scope.equations) - 1, -1, -1):
            eqn = scope.equations[at]
            if _tag(eqn) in have or not any(out in needed for out in eqn.outputs):
                continue
            live.add(at)
            needed.update(value for value in eqn.inputs if value is not None)
        return live, needed

    def _dead(self, have: frozenset[str]) -> frozenset[int]:
        return frozenset(range(len(self.loop.walked.steps))) - self._live(have)[0]

    def _spared_inputs(self, have: frozenset[str]) -> float:
        """Returns the bytes of what was stacked for the loop and is no longer read."""
        if self._outer is None:
            return 0.0
        needed = self._live(have)[1]
        memory: Memory = self._outer.memory
        step = next(s for s in self._outer.walked.steps if any(w is self.loop.walked for _, w in s.inner))
        inner = self.loop.walked.scope.inputs
        given = step.equation.inputs
        pairs = zip(given, inner[len(inner) - len(given) :], strict=True)
        unread = {value for value, inside in pairs if value is not None and inside not in needed}
        stacked = {value: memory.buffers[value].bytes for value in unread if _is_stacked(memory, value)}
        return sum(stacked.values())


def _maker(layers: _Layers, scopes: Sequence[tuple[Roofline, Roofline | None]]) -> int:
    """Returns which scope makes what a backward loop's layers recompute: itself where layers are written out."""
    for at, (loop, _) in enumerate(scopes):
        names = (step.equation for step in loop.walked.steps if step.equation.name == "name")
        made = {str(equation.params["name"]) for equation in names if not equation.again}
        if at != layers.at and loop.runs == layers.loop.runs and made & set(layers.bytes):
            return at
    return layers.at


def _is_stacked(memory: Memory, value: Value) -> bool:
    return value in memory.buffers and memory.buffers[value].stacked


def _tag(equation: object) -> str:
    again, name = getattr(equation, "again", False), getattr(equation, "name", "")
    return str(equation.params["name"]) if again and name == "name" else ""  # type: ignore[attr-defined]


def _tags(loop: Roofline) -> bool:
    return any(_tag(step.equation) for step in loop.walked.steps)


def _scopes(loop: Roofline, outer: Roofline | None = None) -> Iterator[tuple[Roofline, Roofline | None]]:
    yield loop, outer
    for inner in loop.loops:
        yield from _scopes(inner, loop)


def _parameters(estimate: Estimate) -> tuple[float, set[tuple[int, ...]]]:
    """Returns a device's bytes of gradients, and the shapes of parameters and of their layers."""
    leaves = jax.tree.leaves(getattr(estimate.program.abstract_args[0], "params", ()))
    shapes = {leaf.shape for leaf in leaves if math.prod(leaf.shape) > 1}
    return float(sum(map(local_bytes, leaves))), shapes | {shape[1:] for shape in shapes}
