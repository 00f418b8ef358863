"""How long a laid-out program takes: every pass at the memory's bandwidth or at a share of peak, collectives by link.

Collectives of what is ready long before, such as weights, and of what nothing waits for, such as gradients, run beside
the rest of their scope; the others are waited for.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.operands import stated_dtype

from kanawa_parallel.cost_terms import UNLIKELY, filled_share, sent_bytes
from kanawa_parallel.plan.cost.kernel_cost import is_primitive, operation_of
from kanawa_parallel.plan.cost.links import Link
from kanawa_parallel.plan.cost.machine import Machine, kernel_operand_dtypes
from kanawa_parallel.plan.cost.work import Seconds, Sent, Work, axes_text
from kanawa_parallel.plan.quick.buffers import Memory
from kanawa_parallel.plan.quick.equations import Equation, Value, scan_parts
from kanawa_parallel.plan.quick.layout import Move, count_parts, local_bytes, local_shape
from kanawa_parallel.plan.quick.walk import Step, Walked, flops

#: The slot of a weight's form, in which operands are brought into its format.
_QUANTISES = re.compile(r"\bform\b")
_HOST = "host"
#: A collective that waits for nothing but its turn in a ring.
_SENT_ON = "ppermute"
#: What takes long enough that a collective is worth running beside it; loops and branches do too.
_HEAVY = frozenset(("dot_general", "pallas_call", "gather"))
#: Elements of a row that a core handles at once.
_LANES = 128


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one device does in a second in a traced program.

    `matmul_factor` and `memory_factor` are what matmuls and elementwise work reach of the machine's figures.
    """

    machine: Machine
    matmul_factor: float = 1.0
    memory_factor: float = 1.0
    #: Axes over which gradients are summed elsewhere.
    deferred: frozenset[str] = frozenset()
    links_by_axes: dict[tuple[str, ...], Link] = dataclasses.field(default_factory=dict)

    def seconds(self, step: Step | None, own: float, moved: float, path: str = "") -> tuple[float, str]:
        """Returns what one pass of a step (None: elementwise) at a name stack takes and what binds it."""
        if not own and (step is None or step.equation.name not in _HEAVY):
            calibration = self.machine.calibration
            moved *= calibration.fused_share * (calibration.quantising_share if _QUANTISES.search(path) else 1.0)
        if stated := stated_dtype(path):
            # What an emulation holds in 32 bits hardware reads and writes in these.
            moved *= jax.dtypes.itemsize_bits(jnp.dtype(stated)) / 32
        cycles = None if step is None else self._kernel_cycles(step.equation)
        computing = own / self._peak(step)
        if own and step is not None and step.equation.name == "pallas_call":
            computing *= self.machine.kernels.computed(step.equation.path, _label(step.equation))
        if cycles is not None and self.machine.device.clock_hz:
            computing = cycles / self.machine.device.clock_hz
        moving = moved / (self.machine.memory_bandwidth * self.memory_factor)
        return (computing, "compute") if computing >= moving and (own or cycles) else (moving, "memory")

    def row_seconds(self, step: Step, walked: Walked) -> float:
        """Returns what a core takes that gathers rows or adds them to a table, one after another; 0 for other steps."""
        equation, calibration = step.equation, self.machine.calibration
        clock = self.machine.device.clock_hz
        if not clock or not calibration.row_cycles or not equation.name.startswith(("gather", "scatter")):
            return 0.0
        rows: Value | None
        if equation.name == "gather":
            rows, dims = equation.outputs[0], equation.params["dimension_numbers"].offset_dims
            layout = walked.layouts[rows]
        else:
            rows, dims = equation.inputs[2], equation.params["dimension_numbers"].update_window_dims
            layout = step.inputs[2]
        table = equation.inputs[0]
        if rows is None or table is None:
            return 0.0
        if 0 < calibration.row_table_bytes < local_bytes(table, step.inputs[0], walked.mesh):
            return 0.0
        shape = local_shape(rows, layout, walked.mesh)
        width = math.prod(shape[at] for at in dims)
        parts = math.prod(shape) / max(1, width) * math.ceil(width / _LANES)
        return float(parts * calibration.row_cycles / clock)

    def _peak(self, step: Step | None) -> float:
        """Returns the FLOP/s that a step reaches."""
        if step is None:
            return self.machine.peak(())
        equation = step.equation
        dtypes = [value.dtype for value in equation.inputs if value is not None]
        is_matmul = equation.name == "dot_general"
        if stated := stated_dtype(equation.path):
            dtypes = [stated]
        factor = self.machine.kernel_share(operation_of(equation.path), self.matmul_factor if is_matmul else 1.0)
        return factor * self.machine.peak(dtypes if is_matmul else kernel_operand_dtypes(dtypes))

    def _kernel_cycles(self, equation: Equation) -> float | None:
        """Returns the cycles of a kernel's call by a recorded schedule; None for any other equation, and if unknown."""
        if not self.machine.device.clock_hz or equation.name != "pallas_call":
            return None
        return self.machine.kernels.cycles(equation.path, _label(equation))

    def flops(self, step: Step, mesh: Mapping[str, int]) -> float:
        """Returns a device's FLOPs of a matmul by its shapes, of a kernel by its class or by what its call states."""
        equation = step.equation
        own = flops(step, mesh)
        # What stands around a kernel's call, such as a search for its tiles, is in its scope and no call of it.
        if own or is_primitive(equation.name):
            return own
        known = self.machine.kernels.flops(equation.path, _label(equation))
        stated = float(getattr(equation.params.get("cost_estimate"), "flops", 0) or 0)
        return known or stated * filled_share(equation.path)

    def link(self, axes: tuple[str, ...], mesh: Mapping[str, int]) -> Link:
        """Returns the link of a group of devices along mesh axes."""
        if axes not in self.links_by_axes:
            grid = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
            order = [i for i, name in enumerate(mesh) if name not in axes]
            order += [i for i, name in enumerate(mesh) if name in axes]
            # On a torus the compilers' rings run along one dimension.
            groups = grid.transpose(order).reshape(-1, count_parts(axes, mesh))
            self.links_by_axes[axes] = self.machine.reached_links.between(groups, one_dimension=True)
        return self.links_by_axes[axes]


def _label(equation: Equation) -> str:
    return f"{equation.name} {equation.params.get('name', '')}"


class Roofline:
    """The times of one scope and all inside it, run `runs` times.

    `spent` and `moves` are those of the scope alone, by the step that they belong to, which is the number of steps
    for what its outputs need; `loops` the scopes inside.
    """

    def __init__(self, walked: Walked, memory: Memory, rates: Rates, runs: float = 1.0) -> None:
        """Adds up passes, collectives and inner scopes."""
        self.walked, self.memory, self.rates, self.runs = walked, memory, rates, runs
        self.work: list[Work] = []
        self.sent: list[Sent] = []
        self.seconds = Seconds()
        self.spent: list[tuple[int, float]] = []
        self.moves: list[tuple[int, Sent]] = []
        self.loops: list[Roofline] = []
        #: What each loop inside and each pass of this scope takes, by its name stack.
        self.by_path: list[tuple[str, Seconds]] = []
        self._add()

    def _add(self) -> None:
        spent, busy = Seconds(), [0.0] * len(self.walked.steps)
        for at, work, bound in self._passes():
            if at < len(busy):
                busy[at] += work.seconds / max(self.runs, 1.0)
            self.work.append(work)
            self.spent.append((at, work.seconds))
            taken = Seconds(compute=work.seconds) if bound == "compute" else Seconds(memory=work.seconds)
            spent.add(taken)
            self.by_path.append((work.path, taken))
        inner = Seconds()
        for at, work in self._kept():
            self.work.append(work)
            self.spent.append((at, work.seconds))
            spent.memory += work.seconds
            self.by_path.append((work.path, Seconds(memory=work.seconds)))
        for at, step in enumerate(self.walked.steps):
            loops = [Roofline(w, self.memory.inner[id(w)], self.rates, self.runs * n) for n, w in step.inner]
            # Of a conditional's branches the costliest runs, unless its scope says otherwise.
            of = min if UNLIKELY in step.equation.path else max
            for loop in [of(loops, key=lambda each: each.seconds.total)] if loops else []:
                self.loops.append(loop)
                self.work += loop.work
                self.sent += loop.sent
                inner.add(loop.seconds)
                busy[at] += loop.seconds.total / max(self.runs, 1.0)
                self.by_path.append((step.equation.path, loop.seconds))
        self.moves = list(self._collectives(busy))
        own = [item for _, item in self.moves]
        self.sent += own
        # What runs beside this scope's compute is exposed for what it takes longer; what can't, whole.
        early = sum(item.seconds for item in own if not item.exposed_seconds)
        copied = sum(item.seconds for item in own if item.link == _HOST)
        slowed, beyond = self.rates.machine.beside(spent.total, early - copied, copied)
        spent.compute += slowed
        for item in own:
            if waited := item.exposed_seconds or (beyond * item.seconds / early if early else 0.0):
                spent.expose((axes_text(item.axes), item.link), waited)
                self.by_path.append(("", Seconds(exposed={(axes_text(item.axes), item.link): waited})))
        self._wait_for_network(spent, own)
        spent.add(inner)
        self.seconds = spent

    def _wait_for_network(self, spent: Seconds, own: list[Sent]) -> None:
        """Adds the latency of sums between domains, there and back over a tree of them, to a loop's iterations."""
        links, latency = self.rates.machine.links, self.rates.machine.calibration.network_latency_seconds
        between = [item for item in own if item.link == links.device.network_name]
        hops = 2 * math.log2(len(np.unique(links.domains))) if latency and self.runs > 1 else 0.0
        for item in between if hops else []:
            spent.expose((axes_text(item.axes), item.link), item.runs * hops * latency)

    def _passes(self) -> Iterator[tuple[int, Work, str]]:
        for each in self.memory.passes:
            step = self.walked.steps[each.step] if each.step < len(self.walked.steps) else None
            own = 0.0
            if step is not None and each.path == step.equation.path and each.heavy:
                own = self.rates.flops(step, self.walked.mesh)
            seconds, bound = self.rates.seconds(step if each.heavy else None, own, each.bytes, each.path)
            if step is not None and each.heavy:
                seconds = max(seconds, self.rates.row_seconds(step, self.walked))
            runs = self.runs
            yield each.step, Work(each.path, runs, own * runs, each.bytes * runs, seconds * runs), bound

    def _kept(self) -> Iterator[tuple[int, Work]]:
        """Yields the compiler's copies of what a loop saves of each iteration, here or in the host's memory."""
        walked, machine = self.walked, self.rates.machine
        for at, step in enumerate(walked.steps):
            eqn, saved = step.equation, list[tuple[Value, int, bool]]()
            if eqn.name == "device_put":
                pairs = zip(eqn.inputs, eqn.outputs, strict=True)
                saved = [(v, len(v.shape), True) for v, out in pairs if v is not None and out.host and not v.host]
            elif eqn.name == "scan":
                stacked = eqn.outputs[scan_parts(eqn.params)[1] :]
                saved = [(v, len(v.shape) - 1, False) for v in stacked if not v.host and v in self.memory.buffers]
            for value, rank, offloaded in saved:
                size = local_bytes(value, walked.layouts[value], walked.mesh)
                if seconds := machine.kept_seconds(size, rank, offloaded):
                    runs = self.runs
                    yield at, Work(eqn.path, runs, 0.0, 0.0, seconds * runs)

    def _collectives(self, busy: list[float]) -> Iterator[tuple[int, Sent]]:
        """Yields the scope's collectives, each with its step; `busy` is what each step takes by itself."""
        ready, needed = _ready(self.walked), _needed(self.walked)
        steps, last = self.walked.steps, len(self.walked.steps)
        pairs: list[tuple[int, Value | None, Value | None, Move]]
        pairs = [(last, value, None, move) for value, move in self.walked.closing]
        for at, step in enumerate(steps):
            yield from ((at, item) for item in self._copies(step))
            out = step.equation.outputs[0] if step.equation.outputs else None
            if step.equation.name != _SENT_ON or out is None:
                pairs += [(at, step.equation.inputs[index], out, move) for index, move in step.moves]
                continue
            # What a ring sends on while it computes on what it has.
            used = next((i for i, reader in enumerate(steps) if out in reader.equation.inputs), last)
            for number, (_, move) in enumerate(step.moves):
                yield at, self._sent(move, early=False, beside=0.0 if number else sum(busy[at + 1 : used]))
        for at, value, out, move in pairs:
            early = value in ready or out is None or out not in needed
            if early and move.kind in ("all-reduce", "reduce-scatter") and self.rates.deferred.issuperset(move.axes):
                continue
            yield at, self._sent(move, early)

    def _copies(self, step: Step) -> Iterator[Sent]:
        """Yields what goes to the host's memory or comes from there: beside other work, at the bus's pace."""
        if step.equation.name != "device_put":
            return
        for value, out in zip(step.equation.inputs, step.equation.outputs, strict=True):
            if value is not None and value.host != out.host:
                moved = local_bytes(value, self.walked.layouts[value], self.walked.mesh) * self.runs
                yield Sent("copy", (), _HOST, self.runs, moved, moved / self.rates.machine.host_bandwidth, 0.0)

    def _sent(self, move: Move, early: bool, beside: float = 0.0) -> Sent:
        """Returns what a collective sends; `beside` are the seconds of one run that it has before it is awaited."""
        mesh = self.walked.mesh
        members = 2 if move.kind == "collective-permute" else count_parts(move.axes, mesh)
        sent = sent_bytes(move.kind, move.bytes, members)
        link = self.rates.link(move.axes, mesh)
        seconds = self.runs * self.rates.machine.reached_links.seconds(sent, link) if members > 1 else 0.0
        waited = 0.0 if early else max(0.0, seconds - self.runs * beside)
        if move.kind != "all-to-all":
            waited *= self.rates.machine.calibration.waited_share
        return Sent(move.kind, move.axes, link.name, self.runs, sent * self.runs, seconds, waited)


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
