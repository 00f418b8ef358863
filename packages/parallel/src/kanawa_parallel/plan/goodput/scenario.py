"""The inputs of a simulation: failures, step time, checkpoint tiers with their costs, and start-up times."""

import dataclasses
from typing import Any, Literal, get_type_hints

from kanawa.config import Count, Fraction, NonNegative, Positive, Range, Size
from kanawa.errors import UsageError

#: What ends an attempt: a process dies, a host is gone with its memory and disk, or a step never ends.
Kind = Literal["crash", "host", "hang"]
#: What a checkpoint outlives: processes that die, a host that is gone, or everything.
Survives = Literal["process", "host", "all"]


@dataclasses.dataclass(frozen=True)
class Tier:
    """One place that checkpoints go to.

    Attributes:
        every_steps: how often.
        blocking_seconds: what a save stops training for.
        write_seconds: from then on until it counts, beside training.
        restore_seconds: to read it back.
    """

    name: str
    every_steps: Size
    blocking_seconds: NonNegative
    write_seconds: NonNegative
    restore_seconds: NonNegative
    survives: Survives = "all"

    def outlives(self, kind: Kind) -> bool:
        """Returns whether what lies here is whole after such an end."""
        return kind != "host" or self.survives != "process"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run on `hosts` hosts. Seconds unless the name says otherwise.

    Attributes:
        mtbf_hours: of one host, between failures that end the run's processes.
        host_share: of those, after which the host has to be replaced.
        hang_share: of those, that leave processes alive which do nothing.
        spares: hosts that stand by.
        repair_hours: until a lost host stands by again.
        swap_seconds: to put a spare into a lost host's place.
        detect_seconds, hang_seconds: until a dead process, and one that hangs, is noticed and the gang has ended.
        restart_seconds: from then on until new processes start.
        start_seconds: of processes, until they compile.
        compile_seconds, cold_compile_seconds: with a filled compile cache, and the first time.
    """

    hosts: Size
    step_seconds: Positive
    mtbf_hours: Positive
    tiers: tuple[Tier, ...]
    host_share: Fraction = 0.0
    hang_share: Fraction = 0.0
    spares: Count = 0
    repair_hours: NonNegative = 24.0
    swap_seconds: NonNegative = 120.0
    detect_seconds: NonNegative = 30.0
    hang_seconds: NonNegative = 600.0
    restart_seconds: NonNegative = 10.0
    start_seconds: NonNegative = 90.0
    compile_seconds: NonNegative = 10.0
    cold_compile_seconds: NonNegative = 300.0
    days: Positive = 30.0

    def __post_init__(self) -> None:
        """Refuses what can't be; raises UsageError naming field, value and rule."""
        records: list[tuple[str, Scenario | Tier]] = [("", self), *((f"{tier.name}.", tier) for tier in self.tiers)]
        for at, record in records:
            for name, allowed in _RANGES[type(record)].items():
                value = getattr(record, name)
                _check(value in allowed, f"{at}{name}", value, str(allowed))
        both = self.host_share + self.hang_share
        _check(both <= 1, "host_share + hang_share", both, "at most 1")

    @property
    def system_mtbf_seconds(self) -> float:
        """Between failures of any host."""
        return self.mtbf_hours * 3600.0 / self.hosts

    @property
    def horizon_seconds(self) -> float:
        """The time that is simulated."""
        return self.days * 86400.0


def _ranges(record: type) -> dict[str, Range]:
    hints: dict[str, Any] = get_type_hints(record, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


_RANGES = {record: _ranges(record) for record in (Tier, Scenario)}


def _check(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        message = f"--assume {name}={value}: expected {rule}"
        raise UsageError(message)
