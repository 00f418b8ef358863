"""A plan of one target as plain data, and the JSON that machines read."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Traffic:
    """All collectives of one kind over the same mesh axes and link: how many, bytes a device sends, seconds."""

    axes: str
    link: str
    kind: str
    count: float
    bytes: float
    seconds: float
    exposed_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class ModuleRow:
    """One module's share: memory by kind on one device, and FLOPs, bytes and seconds of a step on one device."""

    path: str
    parameters: int = 0
    optimizer: int = 0
    state: int = 0
    temporaries: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class HeldRow:
    """Temporaries of one kind at the fullest moment: their module, their name, and their bytes on a device."""

    module: str
    value: str
    bytes: int


def value_rows(total: Mapping[tuple[str, str], int]) -> tuple[HeldRow, ...]:
    """Returns the rows of bytes by (module, value), largest first."""
    return tuple(HeldRow(*key, size) for key, size in sorted(total.items(), key=lambda item: -item[1]))


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A change that makes a plan fit, and the plan with it."""

    change: str
    fits: bool
    memory_per_device_bytes: int
    step_seconds: float | None
    #: Compiled, not estimated.
    verified: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A plan for one target. Bytes, FLOPs and traffic are a device's unless the name says otherwise."""

    experiment: str
    target: str
    program: str
    devices: int
    chips: int
    compiled: bool
    fits: bool
    memory: dict[str, int]
    memory_limit_bytes: int
    arguments_error: float
    temporaries_error: float
    flops_per_device: float
    flops_per_step: float
    model_flops_per_step: float
    bytes_per_device: float
    tokens_per_step: int
    estimated_cycles: float | None
    estimated_seconds: float
    unestimated_seconds: float
    calibration: dict[str, Any]
    step_seconds_by: dict[str, float]
    published_seconds: float | None
    mesh: dict[str, int]
    kernels: list[dict[str, Any]]
    communication: list[Traffic]
    modules: list[ModuleRow]
    compile_seconds: float
    peak_flops: float
    mfu_formula: str
    versions: dict[str, str]
    cost_per_million_tokens: float | None = None
    currency: str = ""
    note: str = ""
    quick: bool = False
    held: tuple[HeldRow, ...] = ()
    #: Of a pipeline: the layers of each stage.
    layers_of_stages: tuple[int, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    #: Of a decoding step: what the target has room for, a `Room`.
    serving: dict[str, Any] | None = None
    #: Of a training step that draws its own batches: the whole step, a `RolloutStep`.
    rollouts: dict[str, Any] | None = None

    @property
    def memory_per_device_bytes(self) -> int:
        """All that a device holds."""
        return self.memory["total"]

    @property
    def memory_margin_bytes(self) -> int:
        """What is left of a device's memory; negative if the program doesn't fit."""
        return self.memory_limit_bytes - self.memory_per_device_bytes

    @property
    def step_seconds(self) -> float | None:
        """The calibrated estimate; None where there is none, as for a program that doesn't fit: it never runs."""
        return sum(self.step_seconds_by.values()) or None

    @property
    def step_seconds_between(self) -> tuple[float, float] | None:
        """The least and the most that a step takes, by how far published steps were from their plans."""
        if self.step_seconds is None:
            return None
        low, high = self.calibration["interval"]
        return self.step_seconds * low, self.step_seconds * high

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a step by its seconds."""
        return self.tokens_per_step / self.step_seconds if self.step_seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs by what the chips could do in the step's time; recomputation doesn't count."""
        possible = self.peak_flops * self.chips * (self.step_seconds or 0.0)
        return self.model_flops_per_step / possible if possible else None

    @property
    def binds(self) -> str | None:
        """The largest part of the step's time."""
        if self.step_seconds is None:
            return None
        return max(self.step_seconds_by, key=lambda part: self.step_seconds_by[part])

    @property
    def published_error(self) -> float | None:
        """Predicted by published seconds, less 1."""
        if self.published_seconds is None or self.step_seconds is None:
            return None
        return self.step_seconds / self.published_seconds - 1

    @classmethod
    def from_json(cls, plan: dict[str, Any]) -> "Report":
        """Returns the report that `as_json` wrote; derived figures are derived anew."""
        fields = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in plan.items() if name in fields}
        values["communication"] = [Traffic(**row) for row in plan["communication"]]
        values["modules"] = [ModuleRow(**row) for row in plan["modules"]]
        values["layers_of_stages"] = tuple(plan.get("layers_of_stages", ()))
        values["held"] = tuple(HeldRow(**row) for row in plan.get("held", ()))
        values["suggestions"] = tuple(Suggestion(**row) for row in plan["suggestions"])
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `plan --json`."""
        plain = dataclasses.asdict(self)
        for name in ("serving", "rollouts"):
            if plain[name] is None:
                del plain[name]
        return {
            **plain,
            "memory_per_device_bytes": self.memory_per_device_bytes,
            "memory_margin_bytes": self.memory_margin_bytes,
            "step_seconds": self.step_seconds,
            "step_seconds_between": self.step_seconds_between,
            "mfu": self.mfu,
            "binds": self.binds,
            "published_error": self.published_error,
            "tokens_per_second": self.tokens_per_second,
        }
