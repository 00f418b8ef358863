"""A kernel's answer to "can you do this problem on this device", with the reason when it can't."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel supports a problem; `reason` is one sentence.

    A refusal always has a reason, which the user is shown. Support has one where it costs what it needn't.
    """

    ok: bool
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuses a refusal without a reason; raises ValueError."""
        if not self.ok and not self.reason:
            message = "a refusing Verdict needs a reason: the user is shown it"
            raise ValueError(message)

    def __bool__(self) -> bool:
        """True where the kernel supports the problem."""
        return self.ok


SUPPORTED = Verdict(ok=True)


def refuse(reason: str) -> Verdict:
    """Returns a refusal."""
    return Verdict(ok=False, reason=reason)


def first_refusal(*checks: tuple[bool, str]) -> Verdict:
    """Returns a refusal for the first (refused, reason) whose condition holds, else support."""
    for refused, reason in checks:
        if refused:
            return refuse(reason)
    return SUPPORTED
