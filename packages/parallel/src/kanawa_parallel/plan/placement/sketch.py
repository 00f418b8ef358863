"""What a step takes that keeps or sends away some of its activations, or takes its batch in slices, from one trace.

The traced step recomputes all of each layer in its backward pass. What a kept activation spares there, and which
others nobody needs then, follows from the trace; a kept one takes its bytes for every layer. Slices divide what
depends on the batch and repeat what moves parameters.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax

from kanawa_parallel.plan.memory.arguments import argument_bytes, local_bytes
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import Value
from kanawa_parallel.plan.quick.estimate import Estimate
from kanawa_parallel.plan.quick.roofline import Roofline
from kanawa_parallel.plan.quick.stage import PipelineMemory, PipelineTimes

#: Slices of a batch at which activations take next to nothing.
_MANY = 32


@dataclasses.dataclass(frozen=True)
class Kept:
    """Tags of activations that the backward pass has: on the device, or fetched from the host's memory."""

    save: frozenset[str] = frozenset()
    offload: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Guess:
    """Seconds of a step and bytes of a device, as they would be."""

    seconds: float
    memory_bytes: float


class Sketch:
    """One traced step; `tags` are the names of what its backward pass recomputes and could keep."""

    def __init__(self, estimate: Estimate) -> None:
        """Finds the loops of the step and what they would spare."""
        # Of a pipeline, one microbatch through a stage, and how often a stage runs it.
        top, self._runs = estimate.times, 1.0
        if isinstance(top, PipelineTimes):
            top, self._runs = top.alone, top.runs
        self._under_way = estimate.memory.under_way if isinstance(estimate.memory, PipelineMemory) else 1
        self._traced_seconds = estimate.times.seconds.total
        self.rates = top.rates
        self._bandwidth = self.rates.machine.memory_bandwidth * self.rates.memory_factor
        self.host_bandwidth = self.rates.machine.host_bandwidth
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
        self.tags = sorted({tag for layers in self._layers for tag in layers.bytes})

    def guesses(self, sets: Sequence[Kept], counts: Sequence[int]) -> Iterator[tuple[Kept, int, Guess]]:
        """Yields what a step takes that keeps each set of activations, with its batch in each number of slices.

        Of a pipeline, which cuts its batch itself, a microbatch takes that much less in each of its ticks.
        """
        if self._runs != 1.0:
            alone = next(self._alone([Kept()], [1]))[2].seconds
            for kept, count, guess in self._alone(sets, [1]):
                seconds = self._traced_seconds + self._runs * (guess.seconds - alone)
                yield kept, count, dataclasses.replace(guess, seconds=seconds)
            return
        yield from self._alone(sets, counts)

    def _alone(self, sets: Sequence[Kept], counts: Sequence[int]) -> Iterator[tuple[Kept, int, Guess]]:
        haves = list(dict.fromkeys(kept.save | kept.offload for kept in sets))
        totals, spared = self._totals(haves)
        for kept in sets:
            at_have = haves.index(kept.save | kept.offload)
            added = [[scope[at_have] for scope in each] for each in totals]
            sent = [0.0] * len(added)
            for layers, made_in in zip(self._layers, self._made_in, strict=True):
                added[made_in][0] += layers.kept_seconds(kept)
                for at in (made_in, layers.at):
                    # Written once and read once; what leaves the device goes beside the loop's own work.
                    added[at][0] += sum(layers.bytes.get(tag, 0.0) for tag in haves[at_have]) / self._bandwidth
                    sent[at] += sum(layers.bytes.get(tag, 0.0) for tag in kept.offload) / self.host_bandwidth
            for count in counts:
                seconds = 0.0
                for (compute, early, waited), copied in zip(added, sent, strict=True):
                    slowed, beyond = self.rates.machine.beside(compute, early * count, copied)
                    seconds += compute + slowed + beyond + waited
                yield kept, count, Guess(seconds, self._memory(kept, spared[at_have], count))

    def least_seconds(self, sets: Sequence[Kept], room: float) -> float:
        """Returns what a step would take at least that waits for nothing, of the sets whose bytes have room."""
        haves = [kept.save | kept.offload for kept in sets]
        totals, spared = self._totals(haves)
        fitting = [
            sum(scope[at] for scope, _, _ in totals)
            for at, kept in enumerate(sets)
            if self._memory(kept, spared[at], _MANY) <= room
        ]
        return self._runs * min(fitting, default=math.inf)

    def recomputing_seconds(self) -> float:
        """Returns what a step would take that recomputes everything and waits for nothing."""
        return self.least_seconds([Kept()], math.inf)

    def bytes_of(self, tag: str) -> float:
        """Returns the bytes of an activation of all layers on a device; 0 where it has no such name."""
        return sum(layers.bytes.get(tag, 0.0) for layers in self._layers)

    @property
    def gathered_bytes(self) -> float:
        """Returns the bytes of gathered parameters at the step's fullest."""
        return max(0.0, self.fixed_bytes - self._arguments - self._gradients)

    def _totals(self, haves: Sequence[frozenset[str]]) -> tuple[list[tuple[list[float], ...]], list[float]]:
        """Returns seconds of each scope by what is there: of its own passes, of collectives beside them, of those
        waited for; and the bytes of what was saved for the backward pass that it no longer reads.
        """
        live = {layers.at: layers.live(haves) for layers in self._layers}
        totals = []
        for at, (loop, _) in enumerate(self._scopes):
            steps = live[at].steps if at in live else []
            early = [(step, item.seconds) for step, item in loop.moves if not item.exposed_seconds]
            waited = [(step, item.exposed_seconds) for step, item in loop.moves]
            totals.append(tuple(_sums(each, steps, len(haves)) for each in (loop.spent, early, waited)))
        spared = [layers.spared_inputs(live[layers.at], len(haves)) for layers in self._layers]
        return totals, [sum(each) for each in zip(*spared, strict=True)] if spared else [0.0] * len(haves)

    def _memory(self, kept: Kept, spared: float, microbatches: int) -> float:
        extra = sum(layers.bytes.get(tag, 0.0) for layers in self._layers for tag in kept.save)
        activations = max(0.0, self._peak - (self.fixed_bytes - self._arguments) + self._under_way * (extra - spared))
        activations /= microbatches
        # Gradients are summed beside those of a slice.
        sums = self._gradients if microbatches > 1 else 0.0
        return self.fixed_bytes + activations + sums


class _Live(NamedTuple):
    """What runs and is read, a bit for each set of activations that is there: of each step, and of each value."""

    steps: list[int]
    read: dict[Value, int]


def _sums(items: Iterable[tuple[int, float]], live: Sequence[int], count: int) -> list[float]:
    """Returns the sum of (step, amount) of the steps that run, for each of `count` bits."""
    every = (1 << count) - 1
    by_bits: dict[int, float] = {}
    for step, amount in items:
        bits = live[step] if step < len(live) else every
        by_bits[bits] = by_bits.get(bits, 0.0) + amount
    return [sum(amount for bits, amount in by_bits.items() if bits >> at & 1) for at in range(count)]


class _Layers:
    """A backward loop over layers: what each tag takes on a device for all of them, and what it spares."""

    def __init__(self, at: int, loop: Roofline, outer: Roofline | None) -> None:
        self.at, self.loop, self._outer = at, loop, outer
        self._turns = 1.0 if outer is None else loop.runs / outer.runs
        self.bytes: dict[str, float] = {}
        #: Dimensions of what bears each tag.
        self._ranks: dict[str, int] = {}
        walked = loop.walked
        for step in walked.steps:
            tag = _tag(step.equation)
            if tag:
                size = walked.bytes(step.equation.outputs[0]) * self._turns
                self.bytes[tag] = self.bytes.get(tag, 0.0) + size
                self._ranks[tag] = len(step.equation.outputs[0].shape)

    def kept_seconds(self, kept: Kept) -> float:
        """Returns what the compiler's copies of these activations take."""
        return sum(
            self.loop.rates.machine.kept_seconds(size, self._ranks[tag], tag in kept.offload)
            for tag, size in self.bytes.items()
            if tag in kept.save | kept.offload
        )

    def live(self, haves: Sequence[frozenset[str]]) -> _Live:
        """Returns what still runs and is read where each of these sets of activations is there."""
        scope, every = self.loop.walked.scope, (1 << len(haves)) - 1
        there = {tag: sum(1 << at for at, have in enumerate(haves) if tag in have) for tag in self.bytes}
        steps, read = [0] * len(scope.equations), {value: every for value in scope.outputs if value is not None}
        for at in range(len(scope.equations) - 1, -1, -1):
            eqn = scope.equations[at]
            bits = functools.reduce(operator.or_, (read.get(out, 0) for out in eqn.outputs), 0)
            bits &= ~there.get(_tag(eqn), 0)
            if bits:
                steps[at] = bits
                for value in eqn.inputs:
                    if value is not None:
                        read[value] = read.get(value, 0) | bits
        return _Live(steps, read)

    def spared_inputs(self, live: _Live, count: int) -> list[float]:
        """Returns the bytes of what was stacked for the loop and is no longer read, for each of `count` bits."""
        if self._outer is None:
            return [0.0] * count
        memory: Memory = self._outer.memory
        step = next(s for s in self._outer.walked.steps if any(w is self.loop.walked for _, w in s.inner))
        inner = self.loop.walked.scope.inputs
        given = step.equation.inputs
        unread: dict[Value, int] = {}
        for value, inside in zip(given, inner[len(inner) - len(given) :], strict=True):
            if value is not None and _is_stacked(memory, value):
                # Read by nobody as far as one of the places that it comes in by goes.
                unread[value] = unread.get(value, 0) | ~live.read.get(inside, 0)
        sizes = [(bits, memory.buffers[value].bytes) for value, bits in unread.items()]
        return [sum(size for bits, size in sizes if bits >> at & 1) for at in range(count)]


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
