"""What a program does on one device: its work and what it sends, and the seconds that both take."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Work:
    """What one instruction or fused pass does in all its runs; `cycles` is 0 where the compiler makes no estimate.

    `path` is the name stack that JAX gave it.
    """

    path: str
    runs: float
    flops: float
    bytes: float
    seconds: float
    cycles: float = 0.0
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Sent:
    """One collective in all its runs: its kind, mesh axes and link, the bytes a device sends, and the seconds.

    `exposed_seconds` are those that nothing hides.
    """

    kind: str
    axes: tuple[str, ...]
    link: str
    runs: float
    bytes: float
    seconds: float
    exposed_seconds: float


@dataclasses.dataclass
class Seconds:
    """Where time goes; `exposed` is communication that nothing hides, by (mesh axes, link).

    `unestimated` is the part of `compute` of which the compiler says nothing: FLOPs by a share of peak.
    """

    compute: float = 0.0
    unestimated: float = 0.0
    memory: float = 0.0
    exposed: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.memory + sum(self.exposed.values())

    def add(self, other: "Seconds", times: float = 1.0) -> None:
        """Adds another's seconds, `times` over."""
        self.compute += other.compute * times
        self.unestimated += other.unestimated * times
        self.memory += other.memory * times
        for key, value in other.exposed.items():
            self.expose(key, value * times)

    def expose(self, key: tuple[str, str], seconds: float) -> None:
        """Adds communication that nothing hides, over these mesh axes and this link."""
        self.exposed[key] = self.exposed.get(key, 0.0) + seconds


def axes_text(axes: tuple[str, ...]) -> str:
    """Returns mesh axes as a report names them, such as "data+fsdp"; "none" without any."""
    return "+".join(axes) or "none"
