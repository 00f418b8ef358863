"""Collectives in flight: what was started, until when it runs, and the name by which its end refers to it.

A start may be awaited elsewhere: after the loop that began it, in the loop's next iteration, in what a call runs. Then
it travels inside tuples, and each computation knows it by another name.
"""

import dataclasses
from collections.abc import Iterator

from kanawa_parallel.plan.cost.collectives import Collective
from kanawa_parallel.plan.read.hlo import Computation

_SAME = frozenset(("bitcast", "copy", "optimization-barrier", "opt-barrier"))
#: The key of one that is found again by its channel wherever it is awaited.
_CHANNEL = "channel="


@dataclasses.dataclass
class Flights:
    """What is on its way in one computation, by name, and until when each link is taken; seconds from its start."""

    running: dict[str, tuple[Collective, float]] = dataclasses.field(default_factory=dict)
    free: dict[str, float] = dataclasses.field(default_factory=dict)

    def start(self, name: str, item: Collective, now: float) -> float:
        """Takes a collective's link when that is free, and returns when it is through."""
        # A link carries one collective at a time: the second waits for the first, while the cores continue.
        until = max(now, self.free.get(item.link, 0.0)) + item.seconds
        self.free[item.link] = until
        if item.starts:
            self.running[name] = item, until
        return until

    def land(
        self, computation: Computation, operands: tuple[str, ...], channel: str = ""
    ) -> tuple[Collective, float] | None:
        """Returns what an end waits for, which then is on its way no longer; None if nothing is."""
        for operand in operands:
            name = name_where_made(computation, operand)
            # A piece of what a start yields stands for the start.
            for key in (name, name.partition("[")[0]):
                if key in self.running:
                    return self.running.pop(key)
        return self.running.pop(by_channel(channel), None) if channel else None

    def rename(self, computation: Computation, operands: tuple[str, ...], name: str) -> None:
        """Gives what an update passes on the update's own name, by which the end will ask for it."""
        flight = self.land(computation, operands)
        if flight is not None:
            self.running[name] = flight

    def through(self, computation: Computation, value: str, base: str, now: float) -> "Flights":
        """Returns those that a value holds, as they are called where it is called `base`; seconds from `now` on."""
        if not self.running:
            return Flights()
        passed = {key: flight for key, flight in self.running.items() if key.startswith(_CHANNEL)}
        for path, name in _leaves(computation, value):
            for key, flight in self.running.items():
                if key == name or key.startswith(f"{name}["):
                    passed[f"{base}{path}{key[len(name) :]}"] = flight
        if not passed:
            return Flights()
        busy = {link: until - now for link, until in self.free.items() if until > now}
        return Flights({key: (item, until - now) for key, (item, until) in passed.items()}, busy)

    def join(self, others: "Flights", now: float) -> None:
        """Adds those that a computation leaves on their way at `now`."""
        self.running |= {key: (item, until + now) for key, (item, until) in others.running.items()}
        for link, until in others.free.items():
            self.free[link] = max(self.free.get(link, 0.0), until + now)

    def same(self, others: "Flights") -> bool:
        """Returns whether the same are on their way, for as long."""
        mine, theirs = ({key: until for key, (_, until) in each.running.items()} for each in (self, others))
        near = all(abs(until - theirs[key]) <= 1e-9 + 1e-6 * abs(until) for key, until in mine.items() if key in theirs)
        return mine.keys() == theirs.keys() and near


def by_channel(channel: str) -> str:
    """Returns the key of a collective that only its channel identifies."""
    return f"{_CHANNEL}{channel}"


def name_where_made(computation: Computation, name: str) -> str:
    """Returns what a value is called where it is made, "name[i]" for an element: through tuples and copies."""
    path: list[int] = []
    while (made := computation.by_name.get(name)) is not None:
        if made.opcode == "get-tuple-element":
            path.append(int(made.attribute("index") or 0))
        elif made.opcode == "tuple" and path and path[-1] < len(made.operands):
            name = made.operands[path.pop()]
            continue
        elif made.opcode not in _SAME or not made.operands:
            break
        name = made.operands[0]
    return name + "".join(f"[{index}]" for index in reversed(path))


def _leaves(computation: Computation, name: str, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (place in the tuple, handle) of all that a value holds."""
    made = computation.by_name.get(name_where_made(computation, name))
    if made is None or made.opcode != "tuple":
        yield path, name_where_made(computation, name)
        return
    for index, operand in enumerate(made.operands):
        yield from _leaves(computation, operand, f"{path}[{index}]")
