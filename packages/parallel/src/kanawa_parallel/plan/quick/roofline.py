"""How long a laid-out program takes: every pass at the memory's bandwidth or at a share of peak, collectives by link.

Collectives of what is ready long before, such as weights, and of what nothing waits for, such as gradients, run beside
the rest of their scope; the others are waited for.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
from kanawa.plugins import DeviceSpec

from kanawa_parallel.plan.cost.collectives import sent_bytes
from kanawa_parallel.plan.cost.kernel_cost import KernelCost, KernelCosts, operation_of
from kanawa_parallel.plan.cost.links import Link, Links
from kanawa_parallel.plan.cost.timing import Seconds
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import Equation, Value
from kanawa_parallel.plan.quick.layout import Move, local_bytes, parts
from kanawa_parallel.plan.quick.walk import Step, Walked, flops

#: What a device sends to the host's memory a second, and back: PCIe of the fourth generation, shared by few.
HOST_BANDWIDTH = 16e9
#: What takes long enough that a collective is worth running beside it; loops and branches do too.
_HEAVY = frozenset(("dot_general", "pallas_call", "gather"))


@dataclasses.dataclass(frozen=True)
class Work:
    """What one fused pass does in all its runs, on one device."""

    path: str
    flops: float
    bytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Sent:
    """One collective in all its runs: its kind, axes and link, how often, bytes that a device sends, and seconds."""

    kind: str
    axes: tuple[str, ...]
    link: str
    runs: float
    bytes: float
    seconds: float
    early: bool


@dataclasses.dataclass(frozen=True)
class Machine:
    """The figures that times follow from, as far as programs get with them, and the links between the mesh's devices.

    `matmul_factor` and `memory_factor` are what matmuls and elementwise work reach of the device's figures,
    `kernel_factors` what fused kernels do, by operation; a second of communication beside compute costs it
    `hidden_cost`.
    """

    device: DeviceSpec
    links: Links
    kernels: KernelCosts
    matmul_factor: float = 1.0
    memory_factor: float = 1.0
    kernel_factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    hidden_cost: float = 0.0
    known: dict[tuple[str, ...], Link] = dataclasses.field(default_factory=dict)

    def seconds(self, step: Step | None, own: float, moved: float) -> tuple[float, str]:
        """Returns what one pass of a step (None: elementwise) takes and what binds it."""
        device = self.device
        operation = operation_of(step.equation.path) if step is not None else ""
        usual = self.matmul_factor if step is not None and step.equation.name == "dot_general" else 1.0
        factor = self.kernel_factors.get(operation, usual)
        cycles = kernel_cycles(step.equation, self.kernels) if step is not None and device.clock_hz else None
        computing = own / (self._peak(step) * factor)
        if cycles is not None and device.clock_hz:
            computing = cycles / device.clock_hz
        moving = moved / (device.memory_bandwidth * self.memory_factor / device.jax_devices_per_chip)
        return (computing, "compute") if computing >= moving and (own or cycles) else (moving, "memory")

    def _peak(self, step: Step | None) -> float:
        peaks = self.device.peak_flops
        half = peaks.get("bfloat16") or max(peaks.values(), default=1.0)
        dtypes = {v.dtype for v in step.equation.inputs if v is not None} if step is not None else set()
        single = dtypes == {"float32"} and self.device.exact_float32
        return (peaks.get("float32", half) if single else half) / self.device.jax_devices_per_chip

    def link(self, axes: tuple[str, ...], mesh: Mapping[str, int]) -> Link:
        """Returns the link of a group of devices along mesh axes."""
        if axes not in self.known:
            grid = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
            order = [i for i, name in enumerate(mesh) if name not in axes]
            order += [i for i, name in enumerate(mesh) if name in axes]
            # On a torus the compilers' rings run along one dimension.
            groups = grid.transpose(order).reshape(-1, parts(axes, mesh))
            self.known[axes] = self.links.between(groups, one_dimension=True)
        return self.known[axes]


class Roofline:
    """The times of one scope and all inside it, run `runs` times."""

    def __init__(self, walked: Walked, memory: Memory, machine: Machine, runs: float = 1.0) -> None:
        """Adds up passes, collectives and inner scopes."""
        self.walked, self.memory, self.machine, self.runs = walked, memory, machine, runs
        self.work: list[Work] = []
        self.sent: list[Sent] = []
        self.seconds = Seconds()
        self._add()

    def _add(self) -> None:
        spent, own = Seconds(), list(self._collectives())
        for work, bound in self._passes():
            self.work.append(work)
            if bound == "compute":
                spent.compute += work.seconds
            else:
                spent.memory += work.seconds
        self.sent += own
        inner = Seconds()
        for step in self.walked.steps:
            loops = [Roofline(w, self.memory.inner[id(w)], self.machine, self.runs * n) for n, w in step.inner]
            # Of a conditional's branches the costliest runs.
            for loop in [max(loops, key=lambda each: each.seconds.total)] if loops else []:
                self.work += loop.work
                self.sent += loop.sent
                inner.add(loop.seconds)
        # What runs beside this scope's compute is exposed for what it takes longer; what can't, whole.
        early = sum(item.seconds for item in own if item.early)
        beyond = max(0.0, early - spent.compute - spent.memory)
        spent.compute += self.machine.hidden_cost * (early - beyond)
        for item in own:
            waited = beyond * item.seconds / early if item.early and early else item.seconds
            if waited:
                spent.exposed["+".join(item.axes) or "none", item.link] += waited
        spent.add(inner)
        self.seconds = spent

    def _passes(self) -> Iterator[tuple[Work, str]]:
        for each in self.memory.passes:
            step = self.walked.steps[each.step] if each.step < len(self.walked.steps) else None
            own = 0.0
            if step is not None and each.path == step.equation.path and each.heavy:
                own = self._flops(step)
            seconds, bound = self.machine.seconds(step if each.heavy else None, own, each.bytes)
            runs = self.runs
            yield Work(each.path, own * runs, each.bytes * runs, seconds * runs), bound

    def _flops(self, step: Step) -> float:
        """Returns a device's FLOPs of a matmul by its shapes, of a kernel by what is known of its calls."""
        return flops(step, self.walked.mesh) or kernel_flops(step.equation, self.machine.kernels)

    def _collectives(self) -> Iterator[Sent]:
        ready, needed = _ready(self.walked), _needed(self.walked)
        pairs: list[tuple[Value | None, Value | None, Move]] = [(v, None, move) for v, move in self.walked.closing]
        for step in self.walked.steps:
            out = step.equation.outputs[0] if step.equation.outputs else None
            pairs += [(step.equation.inputs[at], out, move) for at, move in step.moves]
        for step in self.walked.steps:
            yield from self._copies(step)
        for value, out, move in pairs:
            early = value in ready or out is None or out not in needed
            yield self._sent(move, early)

    def _copies(self, step: Step) -> Iterator[Sent]:
        """Yields what goes to the host's memory or comes from there: beside other work, at the bus's pace."""
        if step.equation.name != "device_put":
            return
        for value, out in zip(step.equation.inputs, step.equation.outputs, strict=True):
            if value is not None and value.host != out.host:
                moved = local_bytes(value, self.walked.layouts[value], self.walked.mesh) * self.runs
                yield Sent("copy", (), "host", self.runs, moved, moved / HOST_BANDWIDTH, True)

    def _sent(self, move: Move, early: bool) -> Sent:
        mesh = self.walked.mesh
        members = 2 if move.kind == "collective-permute" else parts(move.axes, mesh)
        sent = sent_bytes(move.kind, move.bytes, members)
        link = self.machine.link(move.axes, mesh)
        seconds = (sent / link.bandwidth + self.machine.device.link_latency_seconds) if members > 1 else 0.0
        return Sent(move.kind, move.axes, link.name, self.runs, sent * self.runs, seconds * self.runs, early)


def kernel_cycles(eqn: Equation, kernels: KernelCosts) -> float | None:
    """Returns the cycles of a kernel's call by a recorded schedule; None for any other equation, and if unknown."""
    if eqn.name != "pallas_call":
        return None
    label, within = _labelled(eqn, kernels)
    return next((cycles for cost in within if (cycles := cost.cycles_of(label)) is not None), None)


def _labelled(eqn: Equation, kernels: KernelCosts) -> tuple[str, list[KernelCost]]:
    """Returns what names a call, and the kernels in whose scope it stands."""
    within = [cost for cost in kernels.costs if cost.scope in eqn.path]
    behind = eqn.path.rpartition(within[0].scope)[2] if within else ""
    return f"{eqn.name} {eqn.params.get('name', '')} {behind}", within


def kernel_flops(eqn: Equation, kernels: KernelCosts) -> float:
    """Returns the FLOPs of a kernel's call: as its class says of calls of that name, else as the call states."""
    label, within = _labelled(eqn, kernels)
    known = next((flops for cost in within if (flops := cost.flops(label))), 0.0)
    return known or float(getattr(eqn.params.get("cost_estimate"), "flops", 0) or 0)


def _ready(walked: Walked) -> set[Value]:
    """Returns the values that are there before their scope begins, weights among them: made of inputs by light work."""
    ready = set(walked.scope.inputs) - set(walked.carried)
    for step in walked.steps:
        eqn = step.equation
        if not _is_heavy(step) and all(v is None or v in ready for v in eqn.inputs):
            ready.update(eqn.outputs)
    return ready


def _is_heavy(step: Step) -> bool:
    return bool(step.inner) or step.equation.name in _HEAVY


def _needed(walked: Walked) -> set[Value]:
    """Returns the values that a matmul, a kernel or an inner loop of the scope waits for."""
    needed: set[Value] = set()
    for step in reversed(walked.steps):
        eqn = step.equation
        heavy = _is_heavy(step)
        if heavy or any(out in needed for out in eqn.outputs):
            needed.update(v for v in eqn.inputs if v is not None)
            needed.update(eqn.outputs if heavy else ())
    return needed
