"""Reads the text of a compiled HLO module into computations of instructions; what it can't read it skips.

Arrays are written `bf16[4,4096]{1,0:T(8,128)}`, in tuples too.

Needs no compiler: the text may be a dump of months ago. An instruction may run over several lines, because a kernel's
attributes hold text of their own, whose lines may start with `}`.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# The tail of an 8-bit dtype has letters and digits, as in f8e4m3b11fnuz. A layout is read for its memory space alone.
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]+m[0-9]+[a-z0-9]*)?)\[([0-9,<= ]*)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
#: The memory space of a layout that is the host's; others are the device's main memory (0) or on its chip.
HOST = 5
#: Bits an element takes; what isn't here (tokens, opaque) takes none.
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}
#: HLO's names of what a DeviceSpec calls otherwise.
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "int8"}
_DTYPES |= {"s4": "int4", "u4": "int4"}
_NAMED = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)", re.DOTALL)
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$|^(ENTRY )?%?([\w.\-]+) \(.*->.*\{$")
#: Computations of another thread, such as the host's, say so after their end.
_END = re.compile(r'\}(?:, execution_thread="[^"]*")?$')
#: What a walk over brackets, commas and strings stops at.
_MARK = re.compile(r'\\.|["()\[\]{},]', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: What a compiler writes where it doesn't know, as for a gather on another core: the largest 64-bit integer.
_UNKNOWN_CYCLES = 2**63 - 1
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(", re.DOTALL)
_CALLED = re.compile(r"\b(?:calls|to_apply|condition|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


@dataclass(frozen=True)
class ArrayShape:
    """One array: its HLO dtype, such as "bf16", its dimensions, and the memory space that its layout names."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without the padding of tiles."""
        return -(-self.size * bits(self.dtype) // 8)


def bits(dtype: str) -> int:
    """Returns the bits of one element of an HLO dtype."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = re.match(r"[a-z]+([0-9]+)", dtype)
    # f8e4m3fn: the digits after the first letter are the bits, those of exponent and mantissa follow.
    return int(digits[1]) if digits and dtype[0] in "fsu" else 0


def arrays(text: str) -> list[ArrayShape]:
    """Returns the arrays of a shape text in order; a tuple's leaves. Layouts and comments are skipped."""
    leaves = []
    for match in _ARRAY.finditer(text):
        # A bounded dynamic dimension, `<=8`, is held at its bound.
        dims = tuple(int(d.replace("<=", "")) for d in match[2].split(",") if d.strip())
        space = _SPACE.search(match[3] or "")
        leaves.append(ArrayShape(match[1], dims, int(space[1]) if space else 0))
    return leaves


def device_dtype(dtype: str) -> str:
    """Returns the name a DeviceSpec has for an HLO dtype, such as "bfloat16" for "bf16"."""
    narrow = re.fullmatch(r"f([48])(e\d+m\d+\w*)", dtype)
    if narrow:
        return f"float{narrow[1]}_{narrow[2]}"
    return _DTYPES.get(dtype, dtype)


@dataclass(frozen=True)
class Instruction:
    """One instruction; `attributes` is all the text after its operands."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    operand_text: str
    attributes: str
    root: bool = False

    @functools.cached_property
    def arrays(self) -> list[ArrayShape]:
        """The arrays it yields."""
        return arrays(self.shape)

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The computations it calls, in the order of its attributes."""
        # Updates and ends of an asynchronous call repeat what its start called; it runs once.
        if self.opcode.endswith(("-update", "-done")):
            return ()
        names = _CALLED.findall(self.attributes)
        for group in _BRANCHES.findall(self.attributes):
            names += [name.strip().lstrip("%") for name in group.split(",") if name.strip()]
        return tuple(names)

    @functools.cached_property
    def op_name(self) -> str:
        """The JAX name stack it comes from; empty if the compiler made it up."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1] if match else ""

    @functools.cached_property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate; None where it makes none."""
        match = re.search(r'"estimated_cycles":"?(\d+)', self.attributes)
        return int(match[1]) if match and int(match[1]) != _UNKNOWN_CYCLES else None

    def attribute(self, name: str) -> str | None:
        """Returns an attribute's value up to the next comma outside of brackets; None if it isn't there."""
        match = re.search(rf"\b{name}=", self.attributes)
        return None if match is None else _until_comma(self.attributes, match.end())


@dataclass
class Computation:
    """A named list of instructions, in the order the compiler scheduled them.

    `by_name` has them by name, and an instruction for each element of a tuple that an operand names as "tuple#index".
    """

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)

    def add(self, instruction: Instruction) -> None:
        """Appends an instruction, whose operands are there already."""
        for operand in instruction.operands:
            self._name_element(operand)
        self.instructions.append(instruction)
        self.by_name[instruction.name] = instruction

    def _name_element(self, operand: str) -> None:
        # A compiler may write get-tuple-element so, without an instruction of its own.
        whole, mark, index = operand.rpartition("#")
        if not mark or not index.isdigit() or operand in self.by_name:
            return
        self._name_element(whole)
        made = self.by_name.get(whole)
        parts = _split(made.shape.strip()[1:-1]) if made is not None and made.shape.startswith("(") else []
        shape = parts[int(index)].strip() if int(index) < len(parts) else ""
        element = Instruction(operand, shape, "get-tuple-element", (whole,), f"%{whole}", f", index={index}")
        self.by_name[operand] = element

    def root(self) -> Instruction | None:
        """Returns what it yields; the last instruction if none is marked."""
        marked = next((i for i in self.instructions if i.root), None)
        return marked or (self.instructions[-1] if self.instructions else None)


@dataclass
class HloModule:
    """All computations by name, and which one runs."""

    computations: dict[str, Computation]
    entry: str

    @functools.cached_property
    def callers(self) -> dict[str, list[tuple[str, Instruction]]]:
        """(computation, instruction) of every call of each computation."""
        callers: dict[str, list[tuple[str, Instruction]]] = {}
        for name, computation in self.computations.items():
            for instruction in computation.instructions:
                for called in dict.fromkeys(instruction.called):
                    callers.setdefault(called, []).append((name, instruction))
        return callers


def parse_module(text: str) -> HloModule:
    """Returns the module written in `text`; raises ValueError if it has no entry computation."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    pending: list[str] = []
    entry = ""

    def close() -> None:
        instruction = parse_instruction("\n".join(pending)) if pending else None
        if instruction is not None and current is not None:
            current.add(instruction)
        pending.clear()

    for line in text.splitlines():
        if current is None:
            match = _HEADER.match(line)
            if match and not line.startswith("HloModule"):
                name = match[2] or match[4]
                current = computations[name] = Computation(name)
                entry = name if line.startswith("ENTRY") else entry
        elif pending and not _whole("\n".join(pending)):
            # Attributes may hold anything, lines that look like another instruction or like an end included.
            pending.append(line)
        elif _END.match(line):
            close()
            current = None
        elif _NAMED.match(line):
            close()
            pending.append(line)
        elif pending:
            pending.append(line)
    close()
    if not entry:
        message = "the text holds no ENTRY computation; expected the text of a compiled HLO module"
        raise ValueError(message)
    return HloModule(computations, entry)


def parse_instruction(text: str) -> Instruction | None:
    """Returns the instruction written in `text`, maybe over several lines; None if it is none."""
    match = _NAMED.match(text)
    if match is None:
        return None
    rest = match[3]
    # A tuple's shape holds spaces, so it ends with its bracket; any other at the first space.
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end)
    if end <= 0 or opcode is None:
        return None
    close = _closing(rest, opcode.end() - 1)
    inside = rest[opcode.end() : close]
    # "bf16[4]{0} %x" or just "x": the name comes last, whether shapes are written or not.
    operands = tuple(part.split()[-1].lstrip("%") for part in _split(inside) if part.strip())
    return Instruction(match[2], rest[:end], opcode[1], operands, inside, rest[close + 1 :], bool(match[1]))


def _whole(text: str) -> bool:
    """Returns whether every bracket and string opened in `text` is closed in it."""
    # Nearly all lines are, and counting is quicker than walking.
    bare = _STRING.sub("", text) if '"' in text else text
    return '"' not in bare and all(bare.count(a) <= bare.count(b) for a, b in ("()", "{}", "[]"))


def _marks(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yields (place, mark, depth behind it) of every bracket and comma outside of strings."""
    depth, quoted = 0, False
    for match in _MARK.finditer(text, start):
        mark = match[0]
        # Attributes hold JSON in strings: an escaped quote ends nothing.
        if mark == '"':
            quoted = not quoted
        elif not quoted and mark[0] != "\\":
            depth += (mark in "([{") - (mark in ")]}")
            yield match.start(), mark, depth


def _closing(text: str, start: int) -> int:
    """Returns where the bracket opened at `start` closes; the end of the text if it never does."""
    return next((at for at, _, depth in _marks(text, start) if depth == 0), len(text))


def _until_comma(text: str, start: int) -> str:
    return text[start : next((at for at, mark, depth in _marks(text, start) if mark == "," and depth == 0), None)]


def _split(text: str) -> list[str]:
    """Returns the operands: parts between commas outside of brackets, comments removed."""
    # Long tuples number their operands, `/*index=5*/`, every five.
    text = re.sub(r"/\*.*?\*/", "", text)
    commas = [at for at, mark, depth in _marks(text) if mark == "," and depth == 0]
    return [text[a + 1 : b] for a, b in itertools.pairwise((-1, *commas, len(text)))]
