"""What a compiler for the chip would fuse: a model, for targets whose compiler is not public.

It takes a partitioned program before any compiler fused it, and gives back the same program with fusions: chains of
elementwise work and reductions over rows share one pass over memory, a matmul takes what follows it along, and what is
cheaper to compute again than to read is computed again. Sums whose slices alone are kept become reduce-scatters.
"""

import dataclasses

from kanawa_parallel.plan.read.groups import replica_groups
from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction

#: One result element from one element of each operand, or from where it is told to take it.
_FUSIBLE = frozenset(
    (
        *("abs", "add", "and", "atan2", "broadcast", "cbrt", "ceil", "clamp", "compare", "concatenate", "convert"),
        *("copy", "cosine", "count-leading-zeros", "divide", "dynamic-slice", "dynamic-update-slice", "erf"),
        *("exponential", "exponential-minus-one", "floor", "imag", "iota", "is-finite", "log", "log-plus-one"),
        *("logistic", "map"),
        *("maximum", "minimum", "multiply", "negate", "not", "or", "pad", "popcnt", "power", "real", "reduce"),
        *("reduce-precision", "remainder", "reshape", "reverse", "round-nearest-afz", "round-nearest-even", "rsqrt"),
        *("select", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "slice", "sqrt"),
        *("stochastic-convert", "subtract", "tan", "tanh", "transpose", "xor", "bitcast", "bitcast-convert"),
    )
)
_MATMULS = frozenset(("dot", "convolution"))
#: Other names for what is in memory already; a matrix unit reads transposed as well as straight.
_VIEWS = frozenset(("bitcast", "dynamic-slice", "reshape", "slice", "transpose"))
#: A reduction over more elements ends a pass: 128 rows of fp32 have to stay on the chip until their sums are known.
LONGEST_ROW = 16_384


def fused(module: HloModule) -> HloModule:
    """Returns the program with the fusions that a compiler for the chip would make."""
    computations = dict(module.computations)
    called = {name for c in module.computations.values() for i in c.instructions for name in _applied(i)}
    for name, computation in module.computations.items():
        if name not in called:
            regions = _Regions(_scattered(computation))
            computations |= regions.bodies()
            computations[name] = regions.outside()
    return HloModule(computations, module.entry)


def _applied(instruction: Instruction) -> tuple[str, ...]:
    """Returns computations that are arithmetic on scalars, such as a reduction's sum."""
    return () if instruction.opcode in ("while", "conditional", "call") else instruction.called


def _scattered(computation: Computation) -> Computation:
    """Returns the computation with sums of which each device keeps a slice as reduce-scatters."""
    users = _users(computation)
    slices: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        users_of = users.get(instruction.name, [])
        if instruction.opcode == "all-reduce" and len(instruction.arrays) == 1 and len(users_of) == 1:
            user = users_of[0]
            members = replica_groups(instruction, 1).shape[-1]
            kept = user.opcode == "dynamic-slice" and user.arrays[0].size * members == instruction.arrays[0].size
            if kept:
                slices[instruction.name] = user
    renamed = {user.name: name for name, user in slices.items()}
    instructions = []
    for instruction in computation.instructions:
        if instruction.name in slices:
            kept = slices[instruction.name]
            instructions.append(
                dataclasses.replace(
                    instruction, name=kept.name, shape=kept.shape, opcode="reduce-scatter", root=kept.root
                )
            )
        elif instruction.name not in renamed:
            instructions.append(instruction)
    return _computation(computation.name, instructions)


class _Regions:
    """The regions of one computation: which instructions share a pass over memory."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.by_name = computation.by_name
        self.users = _users(computation)
        self.order = {i.name: position for position, i in enumerate(computation.instructions)}
        self.root = computation.root()
        self.free: set[str] = set()
        self.region: dict[str, int] = {}
        self.members: dict[int, list[str]] = {}
        self._above: dict[str, int] = {}
        self._sources: dict[str, frozenset[str]] = {}
        for instruction in computation.instructions:
            self._place(instruction)

    def outside(self) -> Computation:
        """Returns the computation with one fusion for each region that writes anything."""
        written = self._written()
        last = {self.members[number][-1]: number for number in written}
        instructions = []
        for instruction in self.computation.instructions:
            name = instruction.name
            if name in last:
                instructions += self._fusion(last[name], written[last[name]])
            if name in self.free and self._wanted(name):
                instructions.append(dataclasses.replace(instruction, opcode="bitcast"))
            elif name not in self.region and name not in self.free:
                instructions.append(instruction)
        return _computation(self.computation.name, instructions)

    def bodies(self) -> dict[str, Computation]:
        """Returns what each fusion computes."""
        bodies = {}
        for number, outputs in self._written().items():
            inside, inputs = self._needed(outputs, number)
            parameters = [
                Instruction(name, self.by_name[name].shape, "parameter", (), str(position), "")
                for position, name in enumerate(inputs)
            ]
            body = [dataclasses.replace(self.by_name[name], root=False) for name in inside]
            if len(outputs) == 1:
                body = [dataclasses.replace(i, root=i.name == outputs[0]) for i in body]
            else:
                shape = f"({', '.join(self.by_name[name].shape for name in outputs)})"
                body.append(Instruction("results", shape, "tuple", tuple(outputs), "", "", root=True))
            bodies[self._name(number)] = _computation(self._name(number), [*parameters, *body])
        return bodies

    def _place(self, instruction: Instruction) -> None:
        """Puts an instruction into the region of what it reads, into one of its own, or into none."""
        name = instruction.name
        above = 0
        for operand in instruction.operands:
            if operand in self.by_name:
                above |= self._above.get(operand, 0) | 1 << self.order[operand]
        self._above[name] = above
        small = all(array.size <= 1 for array in instruction.arrays)
        if instruction.opcode in _MATMULS:
            self._join([name], [])
        elif instruction.opcode not in _FUSIBLE or small:
            return
        elif instruction.opcode in _VIEWS and self._in_memory(instruction.operands[0]):
            self.free.add(name)
        else:
            near = sorted({self.region[o] for o in instruction.operands if o in self.region}, reverse=True)
            self._join([name], near)

    def _in_memory(self, name: str) -> bool:
        return name in self.free or name not in self.region

    def _join(self, names: list[str], near: list[int]) -> None:
        """Adds instructions to all of the nearby regions that can be one with them, the latest first."""
        for number in near:
            together = sorted({*names, *self.members[number]}, key=self.order.__getitem__)
            if self._fits(together):
                names = together
                del self.members[number]
        number = self.order[names[0]]
        self.members[number] = names
        self.region |= dict.fromkeys(names, number)

    def _fits(self, names: list[str]) -> bool:
        """Returns whether instructions can share a pass: one matmul, nothing between them outside of it."""
        if sum(self.by_name[name].opcode in _MATMULS for name in names) > 1:
            return False
        mine = sum(1 << self.order[name] for name in names)
        for name in names:
            for operand in self.by_name[name].operands:
                if operand not in self.by_name:
                    continue
                within = mine >> self.order[operand] & 1
                # What waits for a whole sum can't run in the pass that makes it, nor what comes back from outside.
                if (within and self._ends_a_pass(operand)) or (not within and self._above[operand] & mine):
                    return False
                if within and self.by_name[name].opcode in _MATMULS:
                    return False
        return True

    def _ends_a_pass(self, name: str) -> bool:
        made = self.by_name[name]
        if made.opcode != "reduce" or not made.operands or made.operands[0] not in self.by_name:
            return False
        whole = sum(array.size for array in self.by_name[made.operands[0]].arrays)
        return whole > LONGEST_ROW * max(1, made.arrays[0].size)

    def _again(self, name: str) -> bool:
        """Returns whether readers compute a value again: what it is made of is no larger."""
        made = self.by_name[name]
        if name not in self.region or made.opcode in _MATMULS or made.opcode == "reduce" or self._asked(name):
            return False
        sources = self._made_of(name)
        return name not in sources and sum(self._size(source) for source in sources) <= self._size(name)

    def _made_of(self, name: str) -> frozenset[str]:
        """Returns the values in memory, or sums, from which a value follows element by element."""
        if name not in self._sources:
            made = self.by_name.get(name)
            through = made is not None and name in self.region and made.opcode not in (*_MATMULS, "reduce")
            parts = (self._made_of(operand) for operand in made.operands) if made is not None and through else ()
            self._sources[name] = frozenset().union(*parts) if through else frozenset((name,))
        return self._sources[name]

    def _size(self, name: str) -> int:
        made = self.by_name.get(name)
        return 0 if made is None or made.opcode == "constant" else sum(array.bytes for array in made.arrays)

    def _asked(self, name: str) -> bool:
        """Returns whether something asks for the value in memory that is no fusion, views of it included."""
        users = self.users.get(name, [])
        views = any(user.name in self.free and self._wanted(user.name) for user in users)
        alone = any(user.name not in self.region and user.name not in self.free for user in users)
        return views or alone or (self.root is not None and self.root.name == name)

    def _wanted(self, name: str) -> bool:
        """Returns whether anybody reads a view."""
        return bool(self.users.get(name)) or (self.root is not None and self.root.name == name)

    def _written(self) -> dict[int, list[str]]:
        """Returns the results of each region that writes any, in order: what is asked for, and what that is made of."""
        results: dict[int, set[str]] = {}
        waiting = [name for name in self.region if self._asked(name)]
        while waiting:
            name = waiting.pop()
            number = self.region[name]
            if name not in results.setdefault(number, set()):
                results[number].add(name)
                waiting += [each for each in self._needed([name], number)[1] if each in self.region]
        return {number: sorted(names, key=self.order.__getitem__) for number, names in sorted(results.items())}

    def _needed(self, outputs: list[str], number: int) -> tuple[list[str], list[str]]:
        """Returns (what a region computes for its results, what it reads), each in order."""
        inside: set[str] = set()
        inputs: set[str] = set()
        waiting = list(outputs)
        while waiting:
            name = waiting.pop()
            if name in inside or name in inputs or name not in self.by_name:
                continue
            mine = self.region.get(name) == number
            if mine or (name in self.region and self._again(name)):
                inside.add(name)
                waiting += self.by_name[name].operands
            else:
                inputs.add(name)
        return tuple(sorted(each, key=self.order.__getitem__) for each in (inside, inputs))  # type: ignore[return-value]

    def _fusion(self, number: int, outputs: list[str]) -> list[Instruction]:
        _, inputs = self._needed(outputs, number)
        named = [self.by_name[name] for name in self.members[number]]
        # A matmul's epilogue belongs to whom the matmul belongs to.
        label = next((i.op_name for i in named if i.opcode in _MATMULS), self.by_name[outputs[-1]].op_name)
        attributes = f', kind=kLoop, calls=%{self._name(number)}, metadata={{op_name="{label}"}}'
        if len(outputs) == 1:
            made = self.by_name[outputs[0]]
            return [Instruction(made.name, made.shape, "fusion", tuple(inputs), "", attributes, made.root)]
        shape = f"({', '.join(self.by_name[name].shape for name in outputs)})"
        name = f"{self._name(number)}.results"
        parts = [
            Instruction(each, self.by_name[each].shape, "get-tuple-element", (name,), "", f", index={position}")
            for position, each in enumerate(outputs)
        ]
        return [Instruction(name, shape, "fusion", tuple(inputs), "", attributes), *parts]

    def _name(self, number: int) -> str:
        return f"{self.computation.name}.fused.{number}"


def _users(computation: Computation) -> dict[str, list[Instruction]]:
    users: dict[str, list[Instruction]] = {}
    for instruction in computation.instructions:
        for operand in dict.fromkeys(instruction.operands):
            users.setdefault(operand, []).append(instruction)
    return users


def _computation(name: str, instructions: list[Instruction]) -> Computation:
    return Computation(name, instructions, {i.name: i for i in instructions})
