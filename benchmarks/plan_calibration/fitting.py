"""Seconds of compiled rows at a calibration, and the calibration that comes nearest to what was published."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from compiling import Compiled, kernel_costs
from kanawa.composition.target import parse_target
from kanawa.plugins import Calibration
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.cost.timing import Timing
from kanawa_parallel.plan.cost.work import Seconds
from kanawa_parallel.plan.read.hlo import parse_module


class Planned:
    """One row's program, read once, whose time any calibration can be asked for."""

    def __init__(self, compiled: Compiled) -> None:
        self.row, self.compiled = compiled.row, compiled
        device = parse_target(self.row["target"]).device
        links = Links(device, compiled.domains, compiled.places)
        self.device = device
        # Half a unit of the last digit; figures that were computed from others are as good as what they came from.
        digits = f"{self.row['step_seconds']}".partition(".")[2]
        self.rounding = self.row.get("rounding_seconds", 0.5 * 10.0 ** -len(digits))
        kernels = kernel_costs(compiled)
        self.timing = Timing(parse_module(compiled.text), compiled.mesh, Machine(device, links, kernels))

    def split(self, calibration: Calibration) -> Seconds:
        """Returns the step's parts."""
        return self.timing.reaching(calibration).step()

    def error(self, calibration: Calibration) -> float:
        """Returns the logarithm of planned by published seconds."""
        return math.log(self.split(calibration).total / self.row["step_seconds"])


@dataclasses.dataclass(frozen=True)
class Group:
    """Kinds of device that are fitted together: what isn't fitted, and which figures are."""

    devices: tuple[str, ...]
    start: Calibration
    names: tuple[str, ...]


#: What no published step tells apart is taken from elsewhere. TPU kernels take the cycles of their schedules. Rings of
#: NCCL reach 80 % of NVLink; cuDNN's causal attention half of peak by the pairs that its mask leaves; memory 85 % of
#: its data sheet. A collective beside compute takes about a sixth of the multiprocessors and its share of memory, and
#: kernels follow each other in microseconds.
_TPU = Calibration(
    compute_share=0.55,
    memory_share=0.85,
    link_share=0.8,
    network_share=0.5,
)
_GPU = Calibration(
    compute_share=0.74,
    kernel_shares={"attention": 0.5, "grouped_matmul": 0.4},
    memory_share=0.85,
    link_share=0.8,
    network_share=0.5,
    hidden_cost=0.3,
    launch_seconds=4e-6,
)
GROUPS = (
    *(Group((name,), _TPU, ("estimate_factor",)) for name in ("v5e", "v5p", "v6e", "tpu7x")),
    Group(("h100", "h200", "b200"), _GPU, ("compute_share", "network_share")),
)

#: What is fitted, as logarithms, with what is expected before any step is seen and how sure of it we are.
PRIORS = {
    "estimate_factor": (1.0, 0.1),
    "compute_share": (0.74, 0.1),
    "network_share": (0.5, 0.4),
}
#: Published steps were run by programs that are not ours: apart from what is fitted they differ by this much.
SPREAD = 0.07


def fitted(rows: Sequence[Planned], start: Calibration, names: Sequence[str], passes: int = 4) -> Calibration:
    """Returns `start` with `names` at the values nearest to what the rows took, pulled towards what is expected."""
    values = {name: math.log(getattr(start, name)) for name in names}
    for _ in range(passes):
        here = _with(start, values)
        errors = np.array([row.error(here) for row in rows])
        slopes = np.empty((len(rows), len(names)))
        for column, name in enumerate(names):
            step = -0.05 if name != "estimate_factor" else 0.05
            moved = _with(start, values | {name: values[name] + step})
            slopes[:, column] = (np.array([row.error(moved) for row in rows]) - errors) / step
        expected = np.array([math.log(PRIORS[name][0]) - values[name] for name in names])
        weights = np.array([1 / PRIORS[name][1] for name in names])
        left = np.concatenate([slopes / SPREAD, np.diag(weights)])
        right = np.concatenate([-errors / SPREAD, expected * weights])
        change = np.linalg.lstsq(left, right, rcond=None)[0]
        for name, delta in zip(names, change, strict=True):
            limit = 0.0 if name != "estimate_factor" else 1.0
            values[name] = min(limit, values[name] + float(np.clip(delta, -0.5, 0.5)))
        if np.abs(change).max() < 1e-3:
            break
    return _with(start, values)


def left_out(rows: Sequence[Planned], start: Calibration, names: Sequence[str]) -> list[float]:
    """Returns each row's error by a calibration that was fitted without it: on the only row, by what was expected."""
    errors = []
    for index, row in enumerate(rows):
        others = [*rows[:index], *rows[index + 1 :]]
        errors.append(row.error(fitted(others, start, names)))
    return errors


def _with(start: Calibration, values: dict[str, float]) -> Calibration:
    return dataclasses.replace(start, **{name: math.exp(value) for name, value in values.items()})
