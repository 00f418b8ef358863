"""A process beside a training process: sees from outside when it makes no progress, and ends it with a word.

Run as a file by a bare interpreter: it knows the standard library only, so that it starts in milliseconds, and nothing
that holds the interpreter's lock over there, or stops that process, holds it up. In a gang every process has one. The
first that sees its process overdue leaves a record in the run's folder, and by that all others write down theirs: a
gang that hangs is understood from all its stacks.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

#: Turn, entered, deadline, last sign of life (all on the monotonic clock), step, section.
LAYOUT = struct.Struct("<Qdddq32s")
PAGE_BYTES = 4096
#: The process that is watched writes its stacks when it gets this one; schedulers use the ones with names of their own.
DUMP_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
LEAVE = b"L"
STALLED, STOPPED, LOCKED, WAITING = "stalled", "stopped", "holds the interpreter's lock", "waiting"
_LOOK_SECONDS, _BEAT_IS_OLD_SECONDS = 0.5, 3.0
_DUMP_SECONDS, _OTHERS_SECONDS, _LEAVE_SECONDS = 3.0, 5.0, 2.0


class Sidecar:
    """Watches one process; `order` says which, its page and stacks (open files), and where to write what it saw."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.pid = order["pid"]
        self.folder = Path(order["folder"])
        self.looks_overdue = 0
        # Of an attempt that had this one's number, in a run that was begun anew in its folder.
        self.earlier = self._verdicts()

    def watch(self) -> None:
        """Returns when the process has ended, wants to be watched no more, or has been ended."""
        while not self._is_over():
            page = read_page(self.order["page"])
            if page is None:
                continue
            overdue = time.monotonic() > page["deadline"]
            # Twice, since this process may itself have been suspended, with the whole machine.
            self.looks_overdue = self.looks_overdue + 1 if overdue and not self._is_put_aside() else 0
            if self.looks_overdue >= 2 or self._is_asked():
                self.end(page)
                return

    def end(self, page: dict[str, Any]) -> None:
        """Writes down what the process was doing, waits for the others to do so, and ends it."""
        state = self._state(page)
        self.folder.mkdir(parents=True, exist_ok=True)
        stacks = self._stacks(state)
        verdict = {
            "rank": self.order["rank"],
            "host": socket.gethostname(),
            "pid": self.pid,
            "state": state,
            "section": page["section"],
            "step": page["step"],
            "seconds": round(time.monotonic() - page["entered"], 3),
            "allowed_seconds": round(page["deadline"] - page["entered"], 3),
            "time": round(time.time(), 6),
        }
        rank = self.order["rank"]
        (self.folder / f"rank-{rank}.txt").write_text(f"{json.dumps(verdict)}\n\n{stacks}")
        beside = self.folder / f".rank-{rank}.json.partial"
        beside.write_text(json.dumps(verdict))
        beside.replace(self.folder / f"rank-{rank}.json")
        self._wait_for_others()
        if rank == 0 or self.looks_overdue >= 2:
            self._say(verdict)
        self._leave()

    # --- looking ---------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Waits until the next look; whether the process closed its end of our input, by ending or on purpose."""
        readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
        return bool(readable) or os.getppid() != self.pid

    def _is_asked(self) -> bool:
        return bool(self._verdicts() - self.earlier)

    def _verdicts(self) -> set[tuple[str, int]]:
        """Returns the records in the run's folder, each with its time."""
        with contextlib.suppress(OSError):
            return {(str(file), file.stat().st_mtime_ns) for file in self.folder.glob("rank-*.json")}
        return set()

    def _read_verdicts(self) -> list[dict[str, Any]]:
        return [json.loads(Path(file).read_text()) for file, _ in sorted(self._verdicts() - self.earlier)]

    def _is_put_aside(self) -> bool:
        """Whether a person stopped a run of one process at a terminal, with Ctrl-Z; the run may continue."""
        return self.order["processes"] == 1 and self.order["terminal"] and process_state(self.pid) == "T"

    def _state(self, page: dict[str, Any]) -> str:
        if process_state(self.pid) in ("T", "t"):
            return STOPPED
        if time.monotonic() - page["beat"] > _BEAT_IS_OLD_SECONDS:
            return LOCKED
        return STALLED if self.looks_overdue >= 2 else WAITING

    # --- acting ----------------------------------------------------------------------------------------------

    def _stacks(self, state: str) -> str:
        """Returns the Python stacks of all threads, or what the system knows where the process can't write them."""
        source: int = self.order["stacks"]
        with contextlib.suppress(OSError):
            os.kill(self.pid, DUMP_SIGNAL)
            if state == STOPPED:
                # A stopped process takes no signal but this one; it is ended in a moment, whatever it does till then.
                os.kill(self.pid, signal.SIGCONT)
        size, deadline = 0, time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, size = size, os.fstat(source).st_size
            if size and size == before:
                break
        python = os.pread(source, size, 0).decode(errors="replace")
        return python or f"The process wrote no stacks. Its threads, by the system:\n{kernel_threads(self.pid)}"

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + _OTHERS_SECONDS
        while time.monotonic() < deadline and len(self._verdicts() - self.earlier) < self.order["processes"]:
            time.sleep(0.1)

    def _say(self, verdict: dict[str, Any]) -> None:
        suspects = suspected(self._read_verdicts())
        named = "; ".join(f"rank {one['rank']} on {one['host']} {one['state']} in {one['section']}" for one in suspects)
        if self.order["rank"] == 0:
            record = {
                "event": "hang_detected",
                "attempt": self.order["attempt"],
                "step": verdict["step"],
                "suspects": [{name: one[name] for name in ("rank", "host", "state", "section")} for one in suspects],
                "path": str(self.folder),
                "time": verdict["time"],
            }
            append(Path(self.order["events"]), record)
        line = (
            f"kanawa: no progress for {verdict['seconds']:.0f} s after step {verdict['step']} ({named}); the stacks of "
            f"all processes are in {self.folder}. Start all of them again with the same command\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, line.encode())

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            os.write(1, LEAVE)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while os.getppid() == self.pid and time.monotonic() < deadline:
            time.sleep(0.05)
        if os.getppid() == self.pid:
            os.kill(self.pid, signal.SIGKILL)


def read_page(page: int) -> dict[str, Any] | None:
    """Returns what the process said last on an open file; None while it is writing, or before its first word."""
    turn, entered, deadline, beat, step, section = LAYOUT.unpack(os.pread(page, LAYOUT.size, 0))
    if turn % 2 or not entered:
        return None
    name = section.rstrip(b"\0").decode(errors="replace")
    return {"entered": entered, "deadline": deadline, "beat": beat, "step": step, "section": name}


def suspected(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the verdicts of those that keep the others waiting: stopped or locked ones, else the furthest behind."""
    sick = [one for one in verdicts if one["state"] in (STOPPED, LOCKED)]
    if sick:
        return sick
    # All wait for the one that has not come to where they are; it was last to enter the earliest step.
    earliest = min((one["step"] for one in verdicts), default=0)
    return [one for one in verdicts if one["step"] == earliest]


def process_state(pid: int) -> str:
    """Returns the letter that the system has for a process's state, empty where it doesn't tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def kernel_threads(pid: int) -> str:
    """Returns a line for each thread: its name, state and where in the kernel it waits."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name, wait = (task / "comm").read_text().strip(), (task / "wchan").read_text().strip()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            lines.append(f"{task.name} {name} {state} {wait}")
    return "\n".join(lines)


def append(path: Path, record: dict[str, Any]) -> None:
    """Appends a line to the run's events, in one write as the run itself does."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, (json.dumps(record) + "\n").encode())
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    # Ctrl-C and SIGTERM are the process's own business; this one lives as long as it does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Sidecar(json.loads(sys.argv[1])).watch()
