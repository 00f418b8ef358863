"""What a kind of device reaches of its figures, and the published steps that this was fitted on.

Backends provide a table for each compiler whose programs were fitted. Published runs used other programs than ours, so
a calibration includes that difference.
"""

import dataclasses
from collections.abc import Mapping

from kanawa.plugins import Calibration, DeviceSpec, PublishedStep, host
from packaging.version import Version

#: How much wider, on either side, an interval gets where the compiler is another version than the fitted one: two
#: versions of one compiler gave the same step times 8 % apart.
OTHER_COMPILER = 1.1


@dataclasses.dataclass(frozen=True)
class Choice:
    """The calibration of a device under the installed compiler, and a note if it is another compiler's."""

    calibration: Calibration
    note: str = ""

    @property
    def summary(self) -> str:
        """A sentence for a reader: how many steps, of which compiler, and what none of them tests."""
        chosen = self.calibration
        if not chosen.steps:
            shares = f"as similar devices ({chosen.compiler})" if chosen.compiler else "at the figures' own best"
            return f"not calibrated: no published step of this kind was fitted; {shares}"
        count = len(chosen.steps)
        text = f"calibrated on {count} published step{'s' if count > 1 else ''} of this kind ({chosen.compiler})"
        text += f"; {self.note}" if self.note else ""
        return text + (f"; not calibrated: {', '.join(chosen.uncalibrated)}" if chosen.uncalibrated else "")

    def as_json(self) -> dict[str, object]:
        """Returns the record for `plan --json`."""
        chosen = dataclasses.asdict(self.calibration)
        chosen["steps"] = [
            f"{step.workload} on {step.target}: {step.seconds} s published, {step.planned_seconds:.4g} s planned, "
            f"{step.held_out_seconds:.4g} s by the others ({step.source})"
            for step in self.calibration.steps
        ]
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}
        return {**plain, "note": self.note, "said": self.summary}


def calibration_for(device: DeviceSpec, versions: Mapping[str, str]) -> Choice:
    """Returns what `device` reaches with the installed compilers, by distribution name.

    A compiler that isn't in the table takes the nearest's figures, in a wider interval; a device that isn't in it none.
    """
    offered = [each for _, table in host().collect("kanawa_calibrations") for each in table]
    fitting = [each for each in offered if device.name in each.devices]
    if not fitting:
        return Choice(Calibration())
    nearest = min(fitting, key=lambda each: _distance(each.compiler, versions))
    distribution = nearest.compiler.partition(" ")[0]
    present = versions.get(distribution)
    if f"{distribution} {present}" == nearest.compiler:
        return Choice(nearest)
    low, high = nearest.interval
    wider = dataclasses.replace(nearest, interval=(low / OTHER_COMPILER, high * OTHER_COMPILER))
    here = f"{distribution} {present}" if present else "another compiler"
    return Choice(wider, f"interval widened, for this is {here}")


def at_reached_figures(device: DeviceSpec, calibration: Calibration) -> DeviceSpec:
    """Returns the device with its figures as far as programs get with them."""
    return dataclasses.replace(
        device,
        peak_flops={name: flops * calibration.compute_share for name, flops in device.peak_flops.items()},
        memory_bandwidth=device.memory_bandwidth * calibration.memory_share,
        link_bandwidth=device.link_bandwidth * calibration.link_share,
        network_bandwidth=device.network_bandwidth * calibration.network_share,
        clock_hz=device.clock_hz and device.clock_hz / calibration.estimate_factor,
    )


def published_steps() -> list[PublishedStep]:
    """Returns every published step that installed plugins know."""
    return [step for _, steps in host().collect("kanawa_published_steps") for step in steps]


def published_step(experiment: str, target: str) -> PublishedStep | None:
    """Returns what is published for a workload as it stands, if anything."""
    return next((step for step in published_steps() if (step.experiment, step.target) == (experiment, target)), None)


def _distance(compiler: str, versions: Mapping[str, str]) -> float:
    """Returns how far a table's compiler is from the installed one, weighing each part of a release a thousandfold."""
    distribution, _, release = compiler.partition(" ")
    present = versions.get(distribution)
    if present is None:
        return float("inf")
    here, there = (_number(Version(text)) for text in (present, release))
    return abs(here - there)


def _number(version: Version) -> float:
    parts = (*version.release, 0, 0, 0)[:4]
    return sum(part * 1000.0 ** (3 - place) for place, part in enumerate(parts))
