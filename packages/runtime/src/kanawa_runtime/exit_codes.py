"""What a process's exit code means: the one table from which every launcher's restart policy is made.

`kanawa train` ends by it, `kanawa launch` judges by it, help texts and the documentation print it.
"""

import signal
from collections.abc import Iterable, Sequence
from typing import Literal

from kanawa.errors import RETRY

Verdict = Literal["done", "retry", "permanent"]

DONE, USAGE, STOPPED, FIRST_INFRASTRUCTURE, LAST = 0, 2, RETRY, 127, 255
#: The process wasn't asked to stop, and a restart may help: a peer or the storage was lost, or all hung.
#: Systems count it, as they do a kill: where a process always crashes, Kubernetes may see the code of a peer first,
#: and what isn't counted would start for ever. The codes of signals end at 192.
LOST = 200
#: How one that ended with LOST says that nothing is wrong with itself.
PEER_LOST = "another process of this run was lost"
#: As a shell reports a program that is there and can't be executed.
NOT_STARTED = 126
#: What a shell reports for a process that a signal ended is this plus the signal's number.
SIGNAL_BASE = 128


#: Codes, what they mean, and what a launcher does about it.
TABLE = (
    (f"{DONE}", "done", "ends"),
    (f"{USAGE}", "usage: an unknown name, a wrong value, a directory of another run", "ends, failed"),
    (
        f"{STOPPED}",
        "stopped on request, everything saved, or what was read gave no answer: the same command again",
        "starts again, not counted",
    ),
    (
        f"{FIRST_INFRASTRUCTURE} to {LAST}",
        f"killed (128 and the signal's number), or another process, the machine or the storage was lost ({LOST})",
        "starts again, at most --retries times",
    ),
    ("the rest", "permanent: the same command would fail the same way", "ends, failed"),
)


def table_text() -> str:
    """Returns the table as help texts show it."""
    return "exit codes: " + "; ".join(f"{codes} {meaning}" for codes, meaning, _ in TABLE)


def table_markdown() -> str:
    """Returns the table as the documentation shows it."""
    rows = [("exit code", "means", "`kanawa launch`"), ("---", "---", "---"), *TABLE]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def verdict(code: int) -> Verdict:
    """Returns what an exit code, as a shell reports it, means."""
    if code == DONE:
        return "done"
    return "retry" if code == STOPPED or code >= FIRST_INFRASTRUCTURE else "permanent"


def permanent_codes() -> tuple[int, ...]:
    """Returns every code that no other start would mend, for systems that want them listed."""
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


def code_text(code: int) -> str:
    """Returns a code as a person reads it, a signal by its name."""
    name = {number + SIGNAL_BASE: number.name for number in signal.Signals}.get(code)
    return f"exit code {code}" if name is None else f"exit code {code} ({name})"


def ended_text(codes: Sequence[int]) -> str:
    """Returns how the processes of a gang ended, each by its rank."""
    ranks: dict[int, list[int]] = {}
    for rank, code in enumerate(codes):
        ranks.setdefault(code, []).append(rank)
    every = [(f"process{'es' * (len(who) > 1)} {_listed(who)}", code_text(code)) for code, who in ranks.items()]
    return ", ".join(f"{who} ended with {code}" for who, code in every)


def _listed(ranks: Sequence[int]) -> str:
    most = 8
    return ", ".join(map(str, ranks[:most])) + f" and {len(ranks) - most} more" * (len(ranks) > most)


def saved_by_all(codes: Sequence[int]) -> bool:
    """Returns whether a gang stopped because it was asked to: every process saved, none was killed.

    That costs no restart, however often it happens: a job on machines that are reclaimed is stopped a hundred times.
    """
    return bool(codes) and set(codes) == {STOPPED}


def shell_test(variable: str) -> str:
    """Returns a condition of a POSIX shell that holds where the code in a variable is worth another start."""
    return f'[ "${variable}" -eq {STOPPED} ] || [ "${variable}" -ge {FIRST_INFRASTRUCTURE} ]'
