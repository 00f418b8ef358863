"""Where a simulation's numbers come from: the user, a measured run, the plan, or defaults, in this order."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from kanawa.errors import UsageError, did_you_mean

from kanawa_parallel.plan.goodput.scenario import Scenario, Survives, Tier

Origin = Literal["given", "measured", "planned", "assumed"]

#: Hours of one chip between failures: Llama 3's 419 unexpected ends in 54 days on 16,384 chips
#: (arXiv 2407.21783, section 3.3.4), of which 78 % were of hardware.
_MTBF_CHIP_HOURS = 54 * 24 * 16384 / 419
_HOST_SHARE = 0.78
#: Bytes a second of one host, from devices to its memory and from there to the store.
_TO_HOST, _TO_STORE = 16e9, 1e9
#: Of fp32 and its two moments.
_BYTES_PER_PARAMETER = 12
_LEAST_BLOCKING = 0.05
_USUAL_INTERVAL_SECONDS = 600.0
_FIELDS = tuple(field.name for field in dataclasses.fields(Scenario) if field.name != "tiers")
_TIER_FIELDS = {
    "every": "every_steps",
    "blocking": "blocking_seconds",
    "write": "write_seconds",
    "restore": "restore_seconds",
    "survives": "survives",
}
#: What a run's report says, by the scenario's name.
_MEASURED = ("step_seconds", "start_seconds", "compile_seconds", "restart_seconds")
_MEASURED_TIER = ("blocking_seconds", "write_seconds", "restore_seconds")


@dataclasses.dataclass(frozen=True)
class Assumed:
    """A scenario, and where each of its numbers comes from."""

    scenario: Scenario
    origins: Mapping[str, Origin]


@dataclasses.dataclass(frozen=True)
class Planned:
    """What the plan and its target provide.

    Attributes:
        step_seconds: None where nothing was planned.
        parameters: of the model; 0 where that isn't known.
        every_steps: between checkpoints, as the experiment is configured; None where it isn't.
    """

    hosts: int
    chips: int
    step_seconds: float | None = None
    parameters: int = 0
    every_steps: int | None = None


def assume_scenario(planned: Planned, options: Iterable[str], measured: Mapping[str, Any] | None = None) -> Assumed:
    """Returns the scenario; options of the user win over measurements, those over the plan, that over defaults.

    options: texts such as "spares=4" and "tier=local:every=50,blocking=1,write=10,restore=20,survives=process".
    Raises UsageError for unknown names, for what isn't a number and for impossible values.
    """
    values: dict[str, Any] = {
        "hosts": planned.hosts,
        "mtbf_hours": _MTBF_CHIP_HOURS / (planned.chips / planned.hosts),
        "host_share": _HOST_SHARE,
    }
    origins: dict[str, Origin] = dict.fromkeys(_FIELDS, "assumed")
    origins["hosts"] = "planned"
    if planned.step_seconds is not None:
        values["step_seconds"], origins["step_seconds"] = planned.step_seconds, "planned"
    measured_tier: dict[str, float] = {}
    for name, value in _numbers(measured or {}):
        if name in _MEASURED:
            values[name], origins[name] = value, "measured"
        else:
            measured_tier[name] = value
    own, tiers = _parse_options(options)
    values |= own
    origins |= dict.fromkeys(own, "given")
    if "step_seconds" not in values:
        message = "--goodput needs a step's time: plan one (--on TARGET that fits), or --assume step_seconds=2.5"
        raise UsageError(message)
    if "cold_compile_seconds" not in own and "compile_seconds" in values:
        values["cold_compile_seconds"] = max(values["compile_seconds"], Scenario.cold_compile_seconds)
    origins["tiers"] = "given" if tiers else "measured" if measured_tier else "assumed"
    # Refused before anything is divided by it.
    scenario = Scenario(**values, tiers=tuple(tiers))
    if not tiers:
        scenario = dataclasses.replace(scenario, tiers=(_usual_tier(planned, scenario, measured_tier),))
    return Assumed(scenario, origins)


def _parse_options(options: Iterable[str]) -> tuple[dict[str, Any], list[Tier]]:
    values: dict[str, Any] = {}
    tiers: list[Tier] = []
    for text in options:
        name, equals, value = text.partition("=")
        if name == "tier" and equals:
            tiers.append(_tier(value))
        elif name not in _FIELDS or not equals:
            message = f"--assume {text}: there is no {name!r}{did_you_mean(name, [*_FIELDS, 'tier'])}"
            raise UsageError(message)
        else:
            values[name] = _number(name, value, whole=name in ("hosts", "spares"))
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        message = f"--assume tier={'…, tier='.join(names)}…: two tiers of one name; give each its own"
        raise UsageError(message)
    if tiers and not any(tier.survives == "all" for tier in tiers):
        message = f"--assume tier={names[0]}…: no tier survives everything; give one with survives=all, as a store does"
        raise UsageError(message)
    return values, tiers


def _tier(text: str) -> Tier:
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in _TIER_FIELDS:
            message = f"--assume tier={text}: there is no {key!r}{did_you_mean(key, _TIER_FIELDS)}"
            raise UsageError(message)
        if key == "survives" and value not in get_args(Survives):
            message = f"--assume tier={text}: survives={value}{did_you_mean(value, get_args(Survives))}"
            raise UsageError(message)
        values[_TIER_FIELDS[key]] = value if key == "survives" else _number(f"tier={name}:{key}", value, key == "every")
    missing = [key for key in ("every", "blocking", "write", "restore") if _TIER_FIELDS[key] not in values]
    if not name or missing:
        message = (
            f"--assume tier={text}: {', '.join(missing) or 'its name'} missing; expected "
            "tier=NAME:every=STEPS,blocking=SECONDS,write=SECONDS,restore=SECONDS,survives=process|host|all"
        )
        raise UsageError(message)
    return Tier(name=name, **values)


def _number(name: str, text: str, whole: bool = False) -> float | int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (whole and value != int(value)):
        message = f"--assume {name}={text}: expected a {'whole ' if whole else ''}number"
        raise UsageError(message)
    return int(value) if whole else value


def _usual_tier(planned: Planned, scenario: Scenario, measured: Mapping[str, float]) -> Tier:
    """Returns the one tier that every run has, a store, as measured, else by bytes a host and usual bandwidths."""
    share = planned.parameters * _BYTES_PER_PARAMETER / scenario.hosts
    every = planned.every_steps or max(1, round(_USUAL_INTERVAL_SECONDS / scenario.step_seconds))
    return Tier(
        "store",
        every,
        blocking_seconds=measured.get("blocking_seconds", max(_LEAST_BLOCKING, share / _TO_HOST)),
        write_seconds=measured.get("write_seconds", share / _TO_STORE),
        restore_seconds=measured.get("restore_seconds", share / _TO_STORE),
    )


def read_measured(path: Path) -> dict[str, Any]:
    """Returns what `kanawa report RUN --json` measured of a run; raises UsageError for another file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"--measured {path}: can't be read ({error}); expected what `kanawa report RUN --json` prints"
        raise UsageError(message) from error
    runs = content.get("runs") if isinstance(content, dict) else None
    times = runs[0].get("times") if isinstance(runs, list) and runs and isinstance(runs[0], dict) else None
    if not isinstance(times, dict) or not times:
        message = (
            f"--measured {path} has no times of a run; expected what `kanawa report RUN --json` prints of a run that "
            "logged its time"
        )
        raise UsageError(message)
    return times


def _numbers(measured: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name in (*_MEASURED, *_MEASURED_TIER):
        value = measured.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
            yield name, float(value)
