"""How long a scheduled program takes: its instructions in order, collectives running beside them until waited for.

An instruction takes what the compiler estimates (TPU), else what a roofline allows: the longer of its FLOPs at peak
and its bytes at the memory's bandwidth.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from kanawa.plugins import Calibration, DeviceSpec

from kanawa_parallel.plan.cost.calibration import reached
from kanawa_parallel.plan.cost.collectives import Collective, collective, ends
from kanawa_parallel.plan.cost.flops import flops
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.traffic import bytes_moved
from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction
from kanawa_parallel.plan.read.loops import executions, trip_count
from kanawa_parallel.plan.read.shapes import device_dtype

#: The figures themselves, which nothing reaches.
FIGURES = Calibration()


@dataclasses.dataclass
class Seconds:
    """Where time goes; `exposed` is communication that nothing hides, by (mesh axes, link).

    `unestimated` is the part of `compute` of which the compiler says nothing: FLOPs by a share of peak.
    """

    compute: float = 0.0
    unestimated: float = 0.0
    memory: float = 0.0
    exposed: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.memory + sum(self.exposed.values())

    def add(self, other: "Seconds", times: float = 1.0) -> None:
        """Adds another's seconds, `times` over."""
        self.compute += other.compute * times
        self.unestimated += other.unestimated * times
        self.memory += other.memory * times
        for key, value in other.exposed.items():
            self.exposed[key] += value * times


@dataclasses.dataclass(frozen=True)
class Work:
    """One instruction's work in all its runs; `cycles` is 0 where the compiler makes no estimate."""

    op_name: str
    runs: float
    flops: float
    bytes: float
    seconds: float
    cycles: float
    bound: str
    name: str = ""


class Timing:
    """The times of one module on one device kind, at the share of its figures that a calibration says it reaches."""

    def __init__(
        self,
        module: HloModule,
        device: DeviceSpec,
        mesh: Mapping[str, int],
        links: Links,
        kernels: KernelCosts,
        calibration: Calibration = FIGURES,
    ) -> None:
        self.calibration = calibration
        self.figures = device
        self.module, self.mesh, self.kernels = module, mesh, kernels
        self.device = reached(device, calibration)
        self.links = dataclasses.replace(links, device=self.device)
        self.counts = executions(module)
        self._flops: dict[str, float] = {}
        # By id: hashing an instruction would hash all its text, and the module keeps it alive as long as this.
        self._collectives: dict[int, Collective | None] = {}
        # Empty at first, because `communication` asks `_continues`, which reads it.
        self._started: set[str] = set()
        self._started = {each.channel for _, each in self.communication() if each.starts and each.channel}
        self._times: dict[int, tuple[float, str]] = {}
        self._seconds: dict[str, Seconds] = {}

    def reaching(self, calibration: Calibration) -> "Timing":
        """Returns the times at another calibration."""
        if calibration == self.calibration:
            return self
        return Timing(self.module, self.figures, self.mesh, self.links, self.kernels, calibration)

    def step(self) -> Seconds:
        """Returns the seconds of one run of the module."""
        return self._scheduled(self.module.entry)

    def total_flops(self) -> float:
        """Returns the FLOPs of one run on one device, loops counted out."""
        return sum(
            count * self.own_flops(self.module.computations[name], instruction)
            for name, count in self.counts.items()
            for instruction in self.module.computations[name].instructions
        )

    def communication(self) -> list[tuple[float, Collective]]:
        """Returns (runs, collective) of every collective that is scheduled."""
        scheduled = []
        for name in self._reached():
            computation = self.module.computations[name]
            for instruction in computation.instructions:
                each = self._collective(computation, instruction)
                if each is not None and not self._continues(each):
                    scheduled.append((self.counts[name], each))
        return scheduled

    def work(self) -> list[Work]:
        """Returns the work of every scheduled instruction that computes."""
        items = []
        for name in self._reached():
            computation = self.module.computations[name]
            for instruction in computation.instructions:
                count, moved = self.counts[name], bytes_moved(self.module, computation, instruction)
                own = self._instruction_flops(computation, instruction)
                seconds, bound = self._seconds_of(computation, instruction)
                if seconds or own or moved:
                    cycles = float(instruction.estimated_cycles or 0)
                    label = instruction.op_name
                    items.append(
                        Work(label, count, own * count, moved * count, seconds * count, cycles * count, bound,
                             instruction.name)
                    )  # fmt: skip
        return items

    def own_flops(self, computation: Computation, instruction: Instruction) -> float:
        """Returns the FLOPs of one run of the instruction itself."""
        return flops(computation, instruction) or self.kernels.flops(instruction)

    def _reached(self) -> list[str]:
        """Returns the computations that are scheduled: the entry, loops and branches, not what a fusion holds."""
        seen: list[str] = []

        def visit(name: str) -> None:
            if name in seen or name not in self.module.computations:
                return
            seen.append(name)
            for instruction in self.module.computations[name].instructions:
                if instruction.opcode in ("while", "conditional", "call"):
                    for called in instruction.called:
                        visit(called)

        visit(self.module.entry)
        return [name for name in seen if name in self.counts]

    def _scheduled(self, name: str) -> Seconds:
        if name not in self._seconds:
            # A loop's body once, from idle links: what one iteration leaves running isn't carried into the next.
            self._seconds[name] = self._simulate(self.module.computations[name])
        return self._seconds[name]

    def _simulate(self, computation: Computation) -> Seconds:
        """Walks the schedule: a collective that was started runs on its link while the cores go on."""
        spent = Seconds()
        free: dict[str, float] = {}
        running: dict[str, tuple[Collective, float]] = {}
        for instruction in computation.instructions:
            each = self._collective(computation, instruction)
            self._spend(spent, computation, instruction)
            if ends(instruction):
                keys = (*instruction.operands, each.channel if each else "")
                ended = next((key for key in keys if key in running), None)
                if ended is not None:
                    self._wait(spent, *running.pop(ended))
            elif each is not None and not self._continues(each):
                # A link carries one collective at a time: the second waits for the first, while the cores go on.
                begin = max(spent.total, free.get(each.link, 0.0))
                free[each.link] = begin + each.seconds
                if each.starts:
                    # A fusion that starts one is found again by its channel, an instruction by its name.
                    key = each.channel if instruction.opcode == "fusion" else instruction.name
                    running[key] = each, begin + each.seconds
                else:
                    self._wait(spent, each, begin + each.seconds)
            else:
                passed = next((operand for operand in instruction.operands if operand in running), None)
                if passed is not None and instruction.opcode == "async-update":
                    # An update passes the same collective on under a new name, by which the end will ask for it.
                    running[instruction.name] = running.pop(passed)
        return spent

    def _continues(self, each: Collective) -> bool:
        """Returns whether this is a later piece of a collective that a fusion started: compute with a part of it."""
        return not each.starts and each.channel in self._started

    def _spend(self, spent: Seconds, computation: Computation, instruction: Instruction) -> None:
        if instruction.opcode == "while":
            times = trip_count(self.module, computation, instruction)
            body = (instruction.attribute("body") or "").lstrip("%")
            spent.add(self._scheduled(body), times)
        elif instruction.opcode in ("conditional", "call"):
            branches = [self._scheduled(name) for name in instruction.called if name in self.module.computations]
            if branches:
                # One branch runs, and which one the text doesn't say: the slowest. A call has one.
                spent.add(max(branches, key=lambda branch: branch.total))
        else:
            seconds, bound = self._seconds_of(computation, instruction)
            # An instruction counts whole as what binds it: a fusion's bytes move behind its FLOPs, or the other way
            # round.
            if bound == "compute":
                spent.compute += seconds
                if not self._has_estimate(instruction):
                    spent.unestimated += seconds
            else:
                spent.memory += seconds

    def _collective(self, computation: Computation, instruction: Instruction) -> Collective | None:
        key = id(instruction)
        if key not in self._collectives:
            self._collectives[key] = collective(self.module, computation, instruction, self.mesh, self.links)
        return self._collectives[key]

    def _seconds_of(self, computation: Computation, instruction: Instruction) -> tuple[float, str]:
        key = id(instruction)
        if key not in self._times:
            self._times[key] = self._estimate(computation, instruction)
        return self._times[key]

    def _estimate(self, computation: Computation, instruction: Instruction) -> tuple[float, str]:
        """Returns seconds of one run and what binds it."""
        if instruction.opcode in ("while", "conditional", "call"):
            return 0.0, "memory"
        own = self._instruction_flops(computation, instruction)
        moved = bytes_moved(self.module, computation, instruction)
        at_peak = own / self._peak(instruction)
        at_bandwidth = moved / (self.device.memory_bandwidth / self.device.jax_devices_per_chip)
        bound = "compute" if at_peak >= at_bandwidth and own else "memory"
        if self.device.clock_hz and instruction.estimated_cycles is not None:
            return instruction.estimated_cycles / self.device.clock_hz, bound
        # Its time is its link's; the bytes it reads and writes on the way are part of that.
        if self._collective(computation, instruction) is not None:
            return 0.0, "memory"
        began = self.calibration.launch_seconds if own or moved else 0.0
        return began + max(at_peak, at_bandwidth), bound

    def _has_estimate(self, instruction: Instruction) -> bool:
        return instruction.estimated_cycles is not None and self.device.clock_hz is not None

    def _instruction_flops(self, computation: Computation, instruction: Instruction) -> float:
        """Returns the FLOPs of one run with all that a fusion holds."""
        total = self.own_flops(computation, instruction)
        if instruction.opcode not in ("while", "conditional", "call"):
            total += sum(self._held_flops(name) for name in instruction.called)
        return total

    def _held_flops(self, name: str) -> float:
        if name not in self._flops:
            body = self.module.computations.get(name)
            self._flops[name] = sum(self._instruction_flops(body, i) for i in body.instructions) if body else 0.0
        return self._flops[name]

    def _peak(self, instruction: Instruction) -> float:
        """Returns FLOP/s in the narrowest floating dtype at hand: matmuls of fp32 results have bf16 operands."""
        dtypes = {device_dtype(a.dtype) for a in instruction.arrays}
        peaks = self.device.peak_flops
        # Accumulators are fp32 whatever the operands are, so a result's dtype says little; narrow operands are the
        # rule.
        half = peaks.get("bfloat16") or max(peaks.values(), default=1.0)
        only_single = dtypes == {"float32"} and self.device.exact_float32
        peak = peaks.get("float32", half) if only_single else half
        return peak / self.device.jax_devices_per_chip

    def _wait(self, spent: Seconds, item: Collective, until: float) -> None:
        """Adds the time from now until a collective is through, as exposed; what was hidden has had its cost."""
        delay = max(0.0, until - spent.total)
        if delay:
            spent.exposed["+".join(item.axes) or "none", item.link] += delay
        # A collective's kernels take multiprocessors and memory from what runs beside them.
        spent.compute += self.calibration.hidden_cost * max(0.0, item.seconds - delay)
