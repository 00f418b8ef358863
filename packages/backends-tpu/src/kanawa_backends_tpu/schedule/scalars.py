"""The scalar side of a schedule: what decides which branches are taken, evaluated as far as it doesn't hang on data.

Only instructions on which a branch depends remain. A value that comes from the data, or from an instruction that
isn't known here, is None; so is everything made of it.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kanawa_backends_tpu.schedule.bundles import Program

Value = int | None
_ASSIGNED = re.compile(r"%(\w+) = ([\w.]+) ?(.*)", re.DOTALL)
_NAME = re.compile(r"%([sp]\d\w*)")
_MEMORY = re.compile(r"\[smem:\[(#allocation\d+(?:_spill)?)(?: \+ (\$0x[0-9a-f]+))?\]\]")
_TABLE = re.compile(r"\[smem:\[(#allocation\d+) \+ %(\w+)\]\]")
#: From on-chip memory where the program around the kernel made them, from HBM where they are operands of the program.
_COPIED = re.compile(r"dma\.(?:vmem|hbm)_to_smem %(\w+), .*?%(\w+), \[#allocation\d+\]")
_OPERAND = re.compile(r"%(\w+) = inlined_call_operand\.\w+ \[.*?index: (\d+)")
_PLACE = re.compile(r"%(\w+) = smov\.u32 \[?(#allocation\d+)\]?")
_PREDICATE = re.compile(r"^\((!?)%(\w+)(?:, %?(\w+))?\),? ?")


def _signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


_UNARY: dict[str, Callable[[int], int]] = {
    "smov": lambda a: a,
    "pmov": lambda a: a,
    "pneg": lambda a: 1 - a,
    "sphi": lambda a: a,
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "sadd": operator.add,
    "ssub": operator.sub,
    "smul": operator.mul,
    "sand": operator.and_,
    "sor": operator.or_,
    "sxor": operator.xor,
    "sshll": lambda a, b: a << (b & 31),
    "sshra": lambda a, b: a >> (b & 31),
    "sshrl": lambda a, b: (a % 2**32) >> (b & 31),
    "smin": min,
    "smax": max,
    "por": operator.or_,
    "pand": operator.and_,
    "pxor": operator.xor,
    "pnand": lambda a, b: 1 - (a & b),
    "pnor": lambda a, b: 1 - (a | b),
}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
#: What one operand decides alone.
_ABSORBING = {"pand": (0, 0), "pnand": (0, 1), "por": (1, 1), "pnor": (1, 0)}


@dataclass
class Scalar:
    """One instruction: where it writes (a name or a place in memory), what it does and to what."""

    target: str
    operation: str
    operands: tuple[str, ...]
    predicate: str = ""
    negated: bool = False
    otherwise: str = ""
    constant: Value = None

    @property
    def reads(self) -> Iterable[str]:
        """Names and places that it depends on."""
        return (*self.operands, *filter(None, (self.predicate, self.otherwise)))


@dataclass
class State:
    """What is known of registers and memory while a program is walked.

    Attributes:
        tables: contents of scalar memory that the call brings, by the place where they begin.
    """

    tables: Mapping[str, Sequence[int]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def of(self, operand: str) -> Value:
        """Returns a register's, a place's or a literal's value."""
        if operand[:1].isdigit() or operand[:1] == "-":
            return _signed(int(operand, 0))
        return self.values.get(operand)

    def step(self, scalar: Scalar, back: bool) -> None:
        """Carries out one instruction; `back` says whether its loop was begun again."""
        if scalar.operation == "table":
            table, index = self.tables.get(scalar.operands[0], ()), self.of(scalar.operands[1])
            known = index is not None and 0 <= index < len(table)
            self._write(scalar, table[index] if known and index is not None else None)
            return
        if scalar.operation == "sphi":
            self.values[scalar.target] = self.of(scalar.operands[1 if back else 0])
            return
        self._write(scalar, scalar.constant if scalar.constant is not None else self._computed(scalar))

    def _write(self, scalar: Scalar, value: Value) -> None:
        if scalar.predicate:
            guard = self.of(scalar.predicate)
            if guard is None:
                value = None
            elif bool(guard) == scalar.negated:
                value = self.of(scalar.otherwise) if scalar.otherwise else self.values.get(scalar.target)
        self.values[scalar.target] = value

    def _computed(self, scalar: Scalar) -> Value:
        kind, _, rest = scalar.operation.partition(".")
        values = [self.of(operand) for operand in scalar.operands]
        if kind == "scalar_select":
            return None if values[0] is None else values[1 if values[0] else 2]
        if kind in _ABSORBING and _ABSORBING[kind][0] in values:
            return _ABSORBING[kind][1]
        if None in values:
            return None
        known = [value for value in values if value is not None]
        if kind in ("sld", "sst") or (kind in _UNARY and len(known) == 1):
            return _UNARY.get(kind, _UNARY["smov"])(known[0]) if known else None
        if kind in _BINARY and len(known) == 2:
            return _signed(_BINARY[kind](*known))
        if kind == "scmp" and len(known) == 2:
            how, sign = rest.split(".")[:2]
            left, right = ((value % 2**32 if sign == "u32" else value) for value in known)
            return int(_COMPARED[how](left, right)) if how in _COMPARED else None
        return None


def deciding(program: Program) -> list[list[Scalar]]:
    """Returns, bundle by bundle, the instructions on which any branch depends, phis first."""
    every = [[made for text in bundle.instructions if (made := _scalar(text, bundle.reads_core)) is not None]
             for bundle in program.bundles]  # fmt: skip
    writers: dict[str, list[Scalar]] = {}
    for scalar in (each for bundle in every for each in bundle):
        writers.setdefault(scalar.target, []).append(scalar)
    needed: set[str] = set()
    pending = [branch.predicate for branch in program.branches.values() if branch.predicate]
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += [read for scalar in writers.get(name, ()) for read in scalar.reads]
    live = [[scalar for scalar in bundle if scalar.target in needed] for bundle in every]
    return [sorted(bundle, key=lambda scalar: scalar.operation != "sphi") for bundle in live]


def places(program: Program, tables: Sequence[Sequence[int] | None]) -> dict[str, Sequence[int]]:
    """Returns scalar operands whose contents are known by the place that the kernel copies them to before it begins."""
    instructions = [text for bundle in program.bundles for text in bundle.instructions]
    names = {match[1]: match[2] for text in instructions if (match := _PLACE.match(text))}
    operands = {match[1]: int(match[2]) for text in instructions if (match := _OPERAND.search(text))}
    copied = [match.groups() for text in instructions if (match := _COPIED.search(text))]
    known = {}
    for order, (source, target) in enumerate(copied):
        # Where the text doesn't say which operand it is: they are copied in their order.
        number = operands.get(source, order)
        table = tables[number] if number < len(tables) else None
        if target in names and table is not None:
            known[names[target]] = table
    return known


def _scalar(text: str, reads_core: bool) -> Scalar | None:
    match = _ASSIGNED.match(text)
    if match is None:
        return None
    target, operation, rest = match.groups()
    stores = operation == "sst"
    if not stores and _NAME.match(f"%{target}") is None:
        return None
    table = _TABLE.search(rest) if operation == "sld" else None
    rest = rest if table is None else rest.replace(table[0], "").strip()
    place = _MEMORY.search(rest)
    where = "" if place is None else place[1] + (place[2] or "")
    # `sld [place] (%p)` has its predicate at the end, `sst [place] (%p), value` behind the place.
    rest = _MEMORY.sub("", rest).strip()
    guard = _PREDICATE.match(rest)
    rest = rest[guard.end() :] if guard else rest
    operands = tuple(part.strip().lstrip("%") for part in rest.split(",") if part.strip())
    if stores:
        target = where
    elif table is not None:
        operation, operands = "table", table.groups()
    elif operation == "sld":
        operands = (where,) if where else ("data",)
    return Scalar(
        target=target,
        operation=operation,
        operands=operands,
        predicate=guard[2] if guard else "",
        negated=bool(guard and guard[1]),
        otherwise=(guard[3] or "") if guard else "",
        # Both cores do the same work, each on its half of the grid.
        constant=0 if operation == "sld" and reads_core and where == "#allocation0" else None,
    )
