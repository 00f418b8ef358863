"""How long a scheduled program takes: its instructions in order, collectives running beside them until waited for.

An instruction takes what the compiler estimates, if it does, a kernel what its own schedule counts, else what a
roofline allows: the longer of its FLOPs at peak and its bytes at the memory's bandwidth.
"""

import dataclasses
from collections.abc import Mapping

from kanawa.plugins import Calibration

from kanawa_parallel.cost_terms import UNLIKELY, filled_share
from kanawa_parallel.plan.cost.collectives import Collective, collective, communicates, ends
from kanawa_parallel.plan.cost.flights import Flights, by_channel
from kanawa_parallel.plan.cost.flops import flops, operand_array
from kanawa_parallel.plan.cost.kernel_cost import KernelCosts, is_primitive, operation_of
from kanawa_parallel.plan.cost.machine import Machine, kernel_operand_dtypes
from kanawa_parallel.plan.cost.traffic import bytes_moved
from kanawa_parallel.plan.cost.work import Seconds, Sent, Work, axes_text
from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction, device_dtype
from kanawa_parallel.plan.read.loops import executions, trip_count

#: What may run a schedule of its own.
_CONTROL = ("while", "conditional", "call", "async-start", "call-start")
#: Iterations that are walked one by one before the rest is taken to be like the last.
_MOST_ROUNDS = 4


class Timing:
    """The times of one module on one device kind, at the share of its figures that a calibration says it reaches."""

    def __init__(self, module: HloModule, mesh: Mapping[str, int], machine: Machine) -> None:
        self.module, self.mesh, self.machine = module, mesh, machine
        self.device = machine.device
        self._held: dict[str, tuple[float, float]] = {}
        # By id: hashing an instruction would hash all its text, and the module keeps it alive as long as this.
        self._collectives: dict[int, Collective | None] = {}
        self._times: dict[int, tuple[float, str]] = {}
        self._runs: dict[str, tuple[Seconds, Flights]] = {}
        self._scheduled = _scheduled(module)
        every = (self._collective(scope, i) for scope in self._scheduled for i in scope.instructions)
        self._started = {each.channel for each in every if each is not None and each.starts and each.channel}
        # A program's branches may differ as much as computing a block and skipping it, and which one runs the text
        # doesn't say. Devices wait for each other, so the longest stands for all.
        self.counts = executions(module, self._longest_branch)

    def reaching(self, calibration: Calibration) -> "Timing":
        """Returns the times at another calibration."""
        if calibration == self.machine.calibration:
            return self
        return Timing(self.module, self.mesh, dataclasses.replace(self.machine, calibration=calibration))

    def step(self) -> Seconds:
        """Returns the seconds of one run of the module."""
        return self._run(self.module.entry, Flights())[0]

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
        for computation in self._running():
            for instruction in computation.instructions:
                each = self._collective(computation, instruction)
                if each is not None and not self._continues(each):
                    scheduled.append((self.counts[computation.name], each))
        return scheduled

    def sent(self, seconds: Seconds) -> list[Sent]:
        """Returns what is sent; what `seconds` say is exposed over some axes and link is split by the seconds taken."""
        scheduled, exposed = self.communication(), seconds.exposed
        total: dict[tuple[str, str], float] = {}
        for runs, each in scheduled:
            key = axes_text(each.axes), each.link
            total[key] = total.get(key, 0.0) + runs * each.seconds
        items = []
        for runs, each in scheduled:
            key, taken = (axes_text(each.axes), each.link), runs * each.seconds
            waited = taken * exposed.get(key, 0.0) / total[key] if total[key] else 0.0
            items.append(Sent(each.kind, each.axes, each.link, runs, runs * each.bytes, taken, waited))
        return items

    def work(self) -> list[Work]:
        """Returns the work of every scheduled instruction that computes."""
        items = []
        for computation in self._running():
            runs = self.counts[computation.name]
            for instruction in computation.instructions:
                moved = bytes_moved(self.module, computation, instruction)
                own, _ = self._computing(computation, instruction)
                seconds, _ = self._seconds_of(computation, instruction)
                if seconds or own or moved:
                    cycles = runs * (instruction.estimated_cycles or 0)
                    items.append(
                        Work(
                            instruction.op_name, runs, runs * own, runs * moved, runs * seconds, cycles,
                            instruction.name,
                        )
                    )  # fmt: skip
        return items

    def own_flops(self, computation: Computation, instruction: Instruction) -> float:
        """Returns the FLOPs of one run of the instruction itself."""
        stated = flops(computation, instruction)
        if stated and _calls_kernel(instruction):
            return stated * filled_share(instruction.op_name)
        return stated or call_flops(self.machine.kernels, instruction)

    def _kernel_cycles(self, instruction: Instruction) -> float | None:
        """Returns the cycles of a kernel's call by its schedule; None for others, and where no clock counts them."""
        return call_cycles(self.machine.kernels, instruction) if self.device.clock_hz else None

    def _running(self) -> list[Computation]:
        """Returns the scheduled computations that run at all."""
        return [computation for computation in self._scheduled if computation.name in self.counts]

    def _run(self, name: str, entering: Flights) -> tuple[Seconds, Flights]:
        """Walks a schedule; returns its seconds and what is on its way when it ends.

        A collective that was started runs on its link while the cores continue.
        """
        if not entering.running and name in self._runs:
            return self._runs[name]
        computation = self.module.computations[name]
        spent, flights = Seconds(), dataclasses.replace(entering, running=dict(entering.running))
        flights.free = dict(entering.free)
        for instruction in computation.instructions:
            each = self._collective(computation, instruction)
            self._spend(spent, flights, computation, instruction)
            if ends(instruction):
                ended = flights.land(computation, instruction.operands, each.channel if each else "")
                if ended is not None:
                    self._wait(spent, *ended)
            elif each is not None and not self._continues(each):
                # A fusion that starts one is found again by its channel, an instruction by its name.
                by_name = instruction.opcode != "fusion" or not each.channel
                until = flights.start(instruction.name if by_name else by_channel(each.channel), each, spent.total)
                if not each.starts:
                    self._wait(spent, each, until)
            elif instruction.opcode.endswith("-update"):
                flights.rename(computation, instruction.operands, instruction.name)
        if not entering.running:
            self._runs[name] = spent, flights
        return spent, flights

    def _continues(self, each: Collective) -> bool:
        """Returns whether this is a later piece of a collective that a fusion started: compute with a part of it."""
        return not each.starts and each.channel in self._started

    def _spend(self, spent: Seconds, flights: Flights, computation: Computation, instruction: Instruction) -> None:
        if instruction.opcode == "while":
            self._spend_loop(spent, flights, computation, instruction)
        elif _schedules(self.module, instruction):
            self._spend_call(spent, flights, computation, instruction)
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

    def _spend_loop(self, spent: Seconds, flights: Flights, computation: Computation, loop: Instruction) -> None:
        """Adds a loop's iterations: one by one until each begins with what the one before began with."""
        body = self.module.computations.get((loop.attribute("body") or "").lstrip("%"))
        left = trip_count(self.module, computation, loop)
        if body is None or not loop.operands or left <= 0:
            return
        parameter = next((i.name for i in body.instructions if i.opcode == "parameter"), "")
        root = body.root()
        before = flights.through(computation, loop.operands[0], parameter, spent.total)
        leaving, ended = Flights(), 0.0
        for rounds in range(_MOST_ROUNDS):
            seconds, leaving = self._run(body.name, before)
            ended = seconds.total
            after = leaving.through(body, root.name, parameter, ended) if root is not None else Flights()
            # A last round may be a part of one, where the number of iterations is a mean.
            times = left if after.same(before) or rounds == _MOST_ROUNDS - 1 else min(left, 1.0)
            spent.add(seconds, times)
            left -= times
            before = after
            if left <= 0:
                break
        if root is not None:
            flights.join(leaving.through(body, root.name, loop.name, ended), spent.total)

    def _spend_call(self, spent: Seconds, flights: Flights, computation: Computation, call: Instruction) -> None:
        name = self._longest_branch(call)
        if name is None:
            return
        body, root = self.module.computations[name], self.module.computations[name].root()
        first = 1 + call.called.index(name) if call.opcode == "conditional" else 0
        entering = Flights()
        for parameter in body.instructions:
            number = parameter.operand_text.strip()
            if parameter.opcode == "parameter" and number.isdigit() and first + int(number) < len(call.operands):
                operand = call.operands[first + int(number)]
                entering.join(flights.through(computation, operand, parameter.name, spent.total), 0.0)
        seconds, leaving = self._run(name, entering)
        spent.add(seconds)
        if root is not None:
            flights.join(leaving.through(body, root.name, call.name, seconds.total), spent.total)

    def _longest_branch(self, call: Instruction) -> str | None:
        """Returns a conditional's longest branch, of an unlikely one the shortest; or what a call calls."""
        names = [name for name in call.called if name in self.module.computations]
        of = min if UNLIKELY in call.op_name else max
        return of(names, key=lambda name: self._run(name, Flights())[0].total, default=None)

    def _collective(self, computation: Computation, instruction: Instruction) -> Collective | None:
        key = id(instruction)
        if key not in self._collectives:
            self._collectives[key] = collective(
                self.module, computation, instruction, self.mesh, self.machine.reached_links
            )
        return self._collectives[key]

    def _seconds_of(self, computation: Computation, instruction: Instruction) -> tuple[float, str]:
        key = id(instruction)
        if key not in self._times:
            self._times[key] = self._estimate(computation, instruction)
        return self._times[key]

    def _estimate(self, computation: Computation, instruction: Instruction) -> tuple[float, str]:
        """Returns seconds of one run and what binds it."""
        if instruction.opcode in _CONTROL:
            return 0.0, "memory"
        own, at_peak = self._computing(computation, instruction)
        moved = bytes_moved(self.module, computation, instruction)
        at_bandwidth = moved / self.machine.memory_bandwidth
        bound = "compute" if at_peak >= at_bandwidth and own else "memory"
        if self.device.clock_hz and instruction.estimated_cycles is not None:
            return instruction.estimated_cycles / self.device.clock_hz, bound
        scheduled = self._kernel_cycles(instruction)
        if self.device.clock_hz and scheduled is not None:
            # A schedule doesn't wait for memory.
            busy = scheduled / self.device.clock_hz
            return max(busy, at_bandwidth), "compute" if busy >= at_bandwidth else "memory"
        # Its time is its link's; the bytes it reads and writes on the way are part of that.
        if self._collective(computation, instruction) is not None:
            return 0.0, "memory"
        began = self.machine.calibration.launch_seconds if own or moved else 0.0
        return began + max(at_peak, at_bandwidth), bound

    def _has_estimate(self, instruction: Instruction) -> bool:
        if self.device.clock_hz is None:
            return False
        return instruction.estimated_cycles is not None or self._kernel_cycles(instruction) is not None

    def _computing(self, computation: Computation, instruction: Instruction) -> tuple[float, float]:
        """Returns the FLOPs of one run, with all that a fusion holds, and their seconds at peak."""
        own = self.own_flops(computation, instruction)
        peak = self._peak(computation, instruction) * self.machine.kernel_share(operation_of(instruction.op_name))
        held = [] if instruction.opcode in _CONTROL else [self._held_computing(name) for name in instruction.called]
        return own + sum(flops for flops, _ in held), own / peak + sum(seconds for _, seconds in held)

    def _held_computing(self, name: str) -> tuple[float, float]:
        if name not in self._held:
            body = self.module.computations.get(name)
            parts = [self._computing(body, i) for i in body.instructions] if body else []
            self._held[name] = sum(flops for flops, _ in parts), sum(seconds for _, seconds in parts)
        return self._held[name]

    def _peak(self, computation: Computation, instruction: Instruction) -> float:
        """Returns FLOP/s at the operands' dtypes: a result says little, because accumulators are wide in any case."""
        is_kernel = instruction.opcode == "custom-call"
        places = range(len(instruction.operands)) if is_kernel else (0, 1)
        dtypes = [device_dtype(a.dtype) for i in places if (a := operand_array(computation, instruction, i))]
        return self.machine.peak(kernel_operand_dtypes(dtypes) if is_kernel else dtypes)

    def _wait(self, spent: Seconds, item: Collective, until: float) -> None:
        """Adds the time from now until a collective is through, as exposed; what was hidden has had its cost."""
        delay = max(0.0, until - spent.total)
        if delay:
            spent.expose((axes_text(item.axes), item.link), delay)
        # A collective's kernels take multiprocessors and memory from what runs beside them.
        spent.compute += self.machine.calibration.hidden_cost * max(0.0, item.seconds - delay)


def call_flops(kernels: KernelCosts, instruction: Instruction) -> float:
    """Returns the FLOPs of a kernel's call; 0 for any other instruction."""
    return kernels.flops(instruction.op_name, _label(instruction), anywhere=True) if _calls_kernel(instruction) else 0.0


def call_cycles(kernels: KernelCosts, instruction: Instruction) -> float | None:
    """Returns the cycles of a kernel's call by its schedule; None for any other instruction, and if unknown."""
    if not _calls_kernel(instruction):
        return None
    return kernels.cycles(instruction.op_name, _label(instruction), anywhere=True)


def _calls_kernel(instruction: Instruction) -> bool:
    """Returns whether a kernel is called, not a custom call that the compiler made of a primitive beside it."""
    is_call = instruction.opcode.removesuffix("-start") == "custom-call"
    return is_call and not is_primitive(instruction.op_name.rpartition("/")[2])


def _label(call: Instruction) -> str:
    """Returns what names a kernel's call."""
    return " ".join((call.name, call.op_name.rpartition("/")[2], call.attribute("custom_call_target") or ""))


def _scheduled(module: HloModule) -> list[Computation]:
    """Returns the computations that are scheduled: the entry, loops and branches, not what a fusion holds."""
    seen: dict[str, Computation] = {}

    def visit(name: str) -> None:
        if name in seen or name not in module.computations:
            return
        seen[name] = module.computations[name]
        for instruction in seen[name].instructions:
            if _schedules(module, instruction):
                for called in instruction.called:
                    visit(called)

    visit(module.entry)
    return list(seen.values())


def _schedules(module: HloModule, instruction: Instruction) -> bool:
    """Returns whether an instruction runs a schedule on the device's cores."""
    if not instruction.opcode.endswith("-start"):
        return instruction.opcode in _CONTROL
    # What was started asynchronously shares the cores, unless it runs on the host or on links.
    on_host = "host" in (instruction.attribute("async_execution_thread") or "")
    return instruction.opcode in _CONTROL and not on_host and not communicates(module, instruction)
