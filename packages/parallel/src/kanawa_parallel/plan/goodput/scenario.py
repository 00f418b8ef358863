"""The inputs of a simulation: failures, step time, checkpoint tiers with their costs, and start-up times."""

import dataclasses
import math
from typing import Literal

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
    every_steps: int
    blocking_seconds: float
    write_seconds: float
    restore_seconds: float
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

    hosts: int
    step_seconds: float
    mtbf_hours: float
    tiers: tuple[Tier, ...]
    host_share: float = 0.0
    hang_share: float = 0.0
    spares: int = 0
    repair_hours: float = 24.0
    swap_seconds: float = 120.0
    detect_seconds: float = 30.0
    hang_seconds: float = 600.0
    restart_seconds: float = 10.0
    start_seconds: float = 90.0
    compile_seconds: float = 10.0
    cold_compile_seconds: float = 300.0
    days: float = 30.0

    def __post_init__(self) -> None:
        """Refuses what can't be; raises UsageError naming field, value and rule."""
        _check(self.hosts >= 1, "hosts", self.hosts, "1 or more")
        _check(self.spares >= 0, "spares", self.spares, "0 or more")
        for name in ("step_seconds", "mtbf_hours", "days"):
            value = getattr(self, name)
            _check(math.isfinite(value) and value > 0, name, value, "a positive number")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_seconds", "_hours")):
                _check(math.isfinite(value) and value >= 0, field.name, value, "0 or more")
        for name in ("host_share", "hang_share"):
            _check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a share from 0 to 1")
        _check(
            self.host_share + self.hang_share <= 1,
            "host_share + hang_share",
            self.host_share + self.hang_share,
            "at most 1",
        )
        for tier in self.tiers:
            _check(tier.every_steps >= 1, f"{tier.name}.every_steps", tier.every_steps, "1 or more")
            for name in ("blocking_seconds", "write_seconds", "restore_seconds"):
                value = getattr(tier, name)
                _check(math.isfinite(value) and value >= 0, f"{tier.name}.{name}", value, "0 or more")

    @property
    def system_mtbf_seconds(self) -> float:
        """Between failures of any host."""
        return self.mtbf_hours * 3600.0 / self.hosts

    @property
    def horizon_seconds(self) -> float:
        """The time that is simulated."""
        return self.days * 86400.0


def _check(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        message = f"--assume {name}={value}: expected {rule}"
        raise UsageError(message)
