"""What was chosen for one call of an operation: hashable text, static data of the outputs."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


def scope_name(kernel: str, problem: str) -> str:
    """Returns a name scope of a kernel's calls for one problem.

    A program may have the same kernel for whole and for windowed attention, whose calls look alike when compiled.
    """
    return f"{kernel}~{zlib.crc32(problem.encode()):08x}"


@dataclass(frozen=True)
class KernelChoice:
    """The kernel an operation's call got, and why the others didn't.

    Attributes:
        operation: such as "attention".
        problem: the local, per-shard problem as text.
        kernel: the full name, `operation.platform.name`.
        refused: (kernel, reason) of every installed kernel for the platform that would have ranked
            higher but refused.
        note: how the choice differs from what a run chose before, or from what would be chosen now, and what the kernel
            says that it costs beyond need; else empty.
        matmul_flops: FLOPs of one matmul of the problem's size; 0 where the operation has none.
        tuning: what the kernel is run with beside its own choice, as ((name, value), …).
        fallback: whether the platform asks for a fused kernel of the operation and this isn't one.
        local_problem: the problem itself.
        operand_bytes: of all operands of the local problem.
        count: the calls for equal problems; those in a loop count once an iteration.
    """

    operation: str
    problem: str
    kernel: str
    refused: tuple[tuple[str, str], ...] = ()
    note: str = ""
    matmul_flops: float = 0.0
    tuning: tuple[tuple[str, int], ...] = ()
    fallback: bool = False
    local_problem: Any = field(default=None, compare=False, repr=False)
    operand_bytes: int = field(default=0, compare=False)
    count: int = field(default=1, compare=False)

    @property
    def scope(self) -> str:
        """What the call's instructions are named after in a compiled program."""
        return scope_name(self.kernel, self.problem)

    def as_json(self) -> dict[str, object]:
        """Returns the record as `kanawa kernels --json` prints it."""
        return {
            "operation": self.operation,
            "problem": self.problem,
            "kernel": self.kernel,
            "count": self.count,
            "refused": [{"kernel": kernel, "reason": reason} for kernel, reason in self.refused],
            **({"tuning": dict(self.tuning)} if self.tuning else {}),
            **({"note": self.note} if self.note else {}),
        }


def list_choices(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns lines of text for records as `KernelChoice.as_json` makes them; problems of one answer are together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for record in records:
        tuning = "".join(f" {name}={value}" for name, value in record.get("tuning", {}).items())
        refused = tuple((each["kernel"], each["reason"]) for each in record["refused"])
        key = (f"{record['operation']}: {record['kernel']}{tuning}", record.get("note", ""), refused)
        count = record.get("count", 1)
        groups.setdefault(key, []).append(f"for {record['problem']}" + f" ({count} calls)" * (count > 1))
    lines = []
    for (head, note, refused), problems in groups.items():
        details = [*problems, *([note] if note else []), *(f"not {kernel}: {reason}" for kernel, reason in refused)]
        lines += [head, *(f"    {each}" for each in details)]
    return lines
