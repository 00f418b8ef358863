"""Processes that take turns: each runs a block of steps while the others wait; seconds and processor time of blocks.

Of the standard library alone, since the sides run in different environments. A side calls `Turns.stepped` after each
step; the first `warm` steps, which compile, are in no block.
"""

import dataclasses
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MARK = "TURN "


class Turns:
    """A side's own end: reports a block and waits for the next one, on standard output and input.

    `settle` returns once no step is being computed, so that a block holds exactly its own.
    """

    def __init__(self, warm: int, block: int, settle: Callable[[], None] = lambda: None) -> None:
        self._warm, self._block, self._settle = warm, block, settle
        self._steps, self._began = 0, (0.0, 0.0)
        #: What the first report says beside blocks; filled by the side.
        self.about: dict[str, Any] = {}
        #: The tokens of each step, where the side counts them.
        self.tokens: Sequence[int] = ()

    def stepped(self) -> None:
        """Counts a step; at the end of a block reports it and waits. Ends the process where no turn follows."""
        self._steps += 1
        done = self._steps - self._warm
        if done < 0 or done % self._block:
            return
        self._settle()
        seconds, processor = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        block = {"seconds": seconds, "processor": processor, "tokens": sum(self.tokens[-self._block :])}
        _say(block if done else self.about)
        if not sys.stdin.readline():
            sys.stdout.flush()
            os._exit(0)
        self._began = time.perf_counter(), time.process_time()


def _say(what: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{_MARK}{json.dumps(what)}\n")
    sys.stdout.flush()


def pin(cores: int) -> None:
    """Lets this process run on so many of its cores; call it before a library counts them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@dataclasses.dataclass
class Player:
    """A side as seen by the one who deals turns."""

    name: str
    process: Any
    about: dict[str, Any]
    seconds: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)
    tokens: list[int] = dataclasses.field(default_factory=list)

    def turn(self) -> None:
        """Has the side run a block."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told = _heard(self.process)
        self.seconds.append(told["seconds"])
        self.processor.append(told["processor"])
        self.tokens.append(told["tokens"])


def _heard(process: Any) -> dict[str, Any]:
    for line in process.stdout:
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line[len(_MARK) :])
            return found
    message = f"a side ended early with {process.wait()}; its last words are above"
    raise RuntimeError(message)


def play(
    commands: Mapping[str, Sequence[str]], turns: int, environment: Mapping[str, str], lock: str | None = None
) -> dict[str, Player]:
    """Returns the sides after so many turns each, in an order that is reversed each time; those that fail are left out.

    Sides start one after the other, so that none compiles in another's turn. `lock` is a file whose lock is held while
    they take turns, by which those who measure on one machine take turns too.
    """
    players = {}
    for name, command in commands.items():
        process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        players[name] = Player(name, process, {})
        errors = _drained(process)
        try:
            players[name].about = _heard(process)
        except RuntimeError:
            del players[name]
            sys.stderr.write(f"{name} failed:\n{''.join(errors)[-2000:]}\n")
    with open(lock or os.devnull) as held:
        if lock:
            fcntl.flock(held, fcntl.LOCK_EX)
        for turn in range(turns):
            for player in list(players.values())[:: 1 if turn % 2 == 0 else -1]:
                player.turn()
    for player in players.values():
        player.process.stdin.close()
        player.process.wait()
    return players


def _drained(process: Any) -> list[str]:
    """Returns the lines of a process's standard error, which are read as they come."""
    import threading

    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
    return lines


def median_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median and its 95 % interval by order statistics; of few values the interval is their range."""
    ranked, count = sorted(values), len(values)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    return statistics.median(ranked), ranked[low], ranked[high]
