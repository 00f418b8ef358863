"""What a process's exit code means to whoever started it: the one table from which every engine's policy is made.

| code | meaning |
|---|---|
| 0 | done |
| 42 | stopped on purpose with everything saved, or another process was lost: start the gang again |
| 127 and above | the process was killed, or its machine failed: start the gang again |
| the rest | permanent: the same command would fail the same way |
"""

from collections.abc import Iterable, Sequence
from typing import Literal

Verdict = Literal["done", "retry", "permanent"]

DONE, STOPPED, FIRST_INFRASTRUCTURE, LAST = 0, 42, 127, 255
#: What a shell reports for a process that a signal ended is this plus the signal's number.
SIGNAL_BASE = 128


def verdict(code: int) -> Verdict:
    """Returns what an exit code, as a shell reports it, means."""
    if code == DONE:
        return "done"
    return "retry" if code == STOPPED or code >= FIRST_INFRASTRUCTURE else "permanent"


def permanent_codes() -> tuple[int, ...]:
    """Returns every code that no other start would mend, for engines that want them listed."""
    return tuple(code for code in range(1, LAST + 1) if verdict(code) == "permanent")


def shell_code(returncode: int) -> int:
    """Returns the code of a child as a shell reports it; Python gives signals as negative numbers."""
    return returncode if returncode >= 0 else SIGNAL_BASE - returncode


def gang_code(codes: Iterable[int]) -> int:
    """Returns the one code of a gang: a permanent one first, which others ended because of; else a retry; else 0."""
    known = list(codes)
    for wanted in ("permanent", "retry"):
        of_kind = [code for code in known if verdict(code) == wanted]
        if of_kind:
            return max(of_kind)
    return DONE


def saved_by_all(codes: Sequence[int]) -> bool:
    """Returns whether a gang stopped because it was asked to: every process saved, none was killed."""
    return bool(codes) and set(codes) == {STOPPED}


def shell_test(variable: str) -> str:
    """Returns a condition of a POSIX shell that holds where the code in a variable is worth another start."""
    return f'[ "${variable}" -eq {STOPPED} ] || [ "${variable}" -ge {FIRST_INFRASTRUCTURE} ]'
