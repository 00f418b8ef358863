"""`kn.plan`: what an experiment would do on hardware that isn't here; kanawa-parallel has the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

from kanawa.api.experiment import Experiment, Modify, Set, experiment
from kanawa.api.provided import provided
from kanawa.config import Config


class Plan(Protocol):
    """A plan for one target: attributes are the keys of `plan --json`, `str()` is the text of the verb.

    More attributes than these are in docs/reference/plan.md.
    """

    experiment: str
    target: str
    devices: int
    compiled: bool
    fits: bool
    memory_limit_bytes: int
    flops_per_step: float
    step_seconds_by: Mapping[str, float]
    mesh: Mapping[str, int]
    kernels: Sequence[Mapping[str, Any]]
    suggestions: Sequence[Any]

    @property
    def memory_per_device_bytes(self) -> int:
        """All that a device holds."""

    @property
    def step_seconds(self) -> float | None:
        """The seconds of a step; None for a program that doesn't fit."""

    @property
    def mfu(self) -> float | None:
        """The model's FLOPs by what the chips could do in the step's time."""

    def as_json(self) -> dict[str, Any]:
        """Returns the object of `plan --json`."""


@overload
def plan(
    what: str | Path | Config | Experiment,
    *,
    on: str,
    modify: Modify = (),
    set: Set = (),
    data: str | None = None,
    quick: bool = False,
    serve: bool = False,
    suggestions: bool = True,
    prices: str | Path | None = None,
) -> Plan: ...


@overload
def plan(
    what: str | Path | Config | Experiment,
    *,
    on: list[str] | tuple[str, ...],
    modify: Modify = (),
    set: Set = (),
    data: str | None = None,
    quick: bool = False,
    serve: bool = False,
    suggestions: bool = True,
    prices: str | Path | None = None,
) -> list[Plan]: ...


def plan(
    what: str | Path | Config | Experiment,
    *,
    on: str | list[str] | tuple[str, ...],
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
    quick: bool = False,
    serve: bool = False,
    suggestions: bool = True,
    prices: str | Path | None = None,
) -> Plan | list[Plan]:
    """Returns the plan for a target, or one for each of several targets.

    The real step is compiled by the target's compiler in a process of its own: this process starts no device and
    keeps its JAX platform.

    Args:
        what: the experiment, and `modify`, `set` and `data`: as `kn.experiment` takes them.
        on: a target such as "v5p-512", or a sequence of targets.
        quick: estimate in seconds, in this process, without compiling.
        serve: plan a decoding step and the room for its caches instead of the train step.
        suggestions: whether to look for changes that would make a plan fit that doesn't.
        prices: a TOML or JSON file with the price of a chip and hour by device.

    Raises CompositionError with the problems of all targets, and KanawaError naming the first target whose plan fails.
    """
    asked = experiment(what, modify=modify, set=set, data=data)
    targets = [on] if isinstance(on, str) else list(on)
    price_file = None if prices is None else Path(prices)
    plans: list[Plan] = provided("plan")(
        asked, targets, quick=quick, serve=serve, suggestions=suggestions, prices=price_file
    )
    return plans[0] if isinstance(on, str) else plans
