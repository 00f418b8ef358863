"""What was chosen for one call of an operation: hashable text, static data of the outputs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelChoice:
    """The kernel an operation's call got, and why the others didn't.

    Attributes:
        operation: such as "attention".
        problem: the local, per-shard problem as text.
        kernel: the full name, such as "attention.gpu.cudnn".
        refused: (kernel, reason) of every installed kernel for the platform that would have ranked
            higher but refused.
        note: how the choice differs from what a run chose before, or from what would be chosen now; else empty.
    """

    operation: str
    problem: str
    kernel: str
    refused: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, object]:
        """Returns the record as `kanawa kernels --json` prints it."""
        return {
            "operation": self.operation,
            "problem": self.problem,
            "kernel": self.kernel,
            "refused": [{"kernel": kernel, "reason": reason} for kernel, reason in self.refused],
            **({"note": self.note} if self.note else {}),
        }
