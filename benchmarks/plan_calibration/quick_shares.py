"""Fits the shares of quick plans on one half of the published steps and judges them by the other.

Run: `python benchmarks/plan_calibration/quick_shares.py [--only DEVICE]… [--fit] [--json FILE] [--markdown FILE]`.

The rule of the halves, which no plan's error has a part in: of each kind of device (`KINDS`) rows are ordered by the
SHA-256 of their id, and the first, third, fifth … are fitted, the others judged. Rows whose `device` is another than
their target's are judged, as new devices. `--fit` starts from the shares that
ship, holds each near its start (`_NEAR`) and prints what to write into the backends' `calibration.py`; without it the
shares that ship are judged. Both halves' median and worst error are printed by class.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from as_published import calibrated, gather_narrow
from kanawa.errors import KanawaError
from kanawa.plugins import Calibration
from kanawa_parallel.plan.cost.work import Seconds
from kanawa_parallel.plan.quick.estimate import estimated
from kanawa_parallel.plan.quick.roofline import Rates, Roofline
from kanawa_parallel.plan.quick.stage import PipelineTimes, one_stage, pipeline_times
from rows import Row, composed
from scipy.optimize import least_squares

_HERE = Path(__file__).parent
#: Devices whose rows are halved together.
KINDS = {
    "v5e": ("v5e",), "v5p": ("v5p",), "v6e": ("v6e",), "v7x": ("v7x", "tpu7x"), "Trainium": ("trn1", "trn2"),
    "A100": ("a100",), "Hopper": ("h100", "h200"), "Blackwell": ("b200", "b300", "gb200", "gb300"), "AMD": ("mi325x",),
}  # fmt: skip
#: Devices of which dense bf16 steps have been published for years.
_KNOWN = ("v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200", "b200", "trn2")
_TPU, _GPU = ("v5e", "v5p", "v6e", "v7x"), ("A100", "Hopper", "Blackwell")
#: What is fitted: kinds that share a value, its name, and the operation or dtype of a mapping.
PARAMETERS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    *(((kind,), "compute_share", "") for kind in (*_TPU, *_GPU)),
    *((kinds, "fused_share", "") for kinds in (_TPU[:2], *((kind,) for kind in (*_TPU[2:], *_GPU)))),
    *(((kind,), "estimate_factor", "") for kind in ("v6e", "v7x")),
    *(((kind,), "kernel_shares", "attention") for kind in _GPU[1:]),
    *((kinds, "kernel_shares", "grouped_matmul") for kinds in (("v7x",), _GPU[1:])),
    *((kinds, name, "") for kinds in (_TPU, _GPU) for name in ("waited_share", "quantising_share")),
    *((kinds, "hidden_cost", "") for kinds in (_TPU[:2], ("v6e",), ("v7x",), _GPU[1:])),
    (("Blackwell",), "narrow_shares", "float8"),
    (("Trainium",), "link_share", ""),
)
#: By how much, as a logarithm, a share may move at the price of a row's error of `_TOLERATED`.
_NEAR, _TOLERATED = 0.3, 0.06


def rows_of(file: Path) -> list[Row]:
    """Returns the rows of a file, each with its whole shape."""
    held = json.loads(file.read_text("utf-8"))
    if isinstance(held, list):
        return held
    return [row | {"shape": held["shapes"][row["model"]] | row.get("shape", {})} for row in held["steps"]]


def kind_of(row: Row) -> str:
    """Returns the kind of device of a row."""
    name = row["target"].partition("-")[0]
    return next((kind for kind, devices in KINDS.items() if name in devices), name)


def class_of(row: Row) -> str:
    """Returns which bound a row has."""
    known = row["target"].partition("-")[0] in _KNOWN and not {"device", "experts"} & {*row, *row["shape"]}
    dense = known and row.get("precision", "bf16")[:4] in ("bf16", "fp16")
    return "dense bf16, known devices" if dense else "low precision, mixtures, new devices"


def fitted_ids(rows: Sequence[Row]) -> frozenset[str]:
    """Returns the rows that shares may be fitted on, by the rule above."""
    found: list[str] = []
    for kind in {kind_of(row) for row in rows}:
        mine = (row["id"] for row in rows if kind_of(row) == kind and "device" not in row)
        found += sorted(mine, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[::2]
    return frozenset(found)


class Traced:
    """A row's program, laid out once, whose time any calibration can be asked for."""

    def __init__(self, row: Row) -> None:
        self.row, self.kind = row, kind_of(row)
        composition = composed(row)
        self.stage, self.estimate = one_stage(composition), estimated(composition, "train_step")
        times = self.estimate.times
        alone = times.alone if isinstance(times, PipelineTimes) else times
        self._walked, self._memory, self.rates = alone.walked, alone.memory, alone.rates
        gather_narrow(row, self._walked)
        self.shipped = calibrated(row, self.rates.machine.calibration)

    def seconds(self, calibration: Calibration) -> Seconds:
        """Returns the parts of the step at a calibration."""
        machine = dataclasses.replace(self.rates.machine, calibration=calibration)
        rates = Rates(machine, self.rates.matmul_factor, self.rates.memory_factor)
        if self.stage is not None:
            return pipeline_times(self.stage, self._walked, self._memory, rates).seconds
        return Roofline(self._walked, self._memory, rates).seconds

    def error(self, calibration: Calibration) -> float:
        """Returns the logarithm of planned by published seconds."""
        return math.log(self.seconds(calibration).total / self.row["step_seconds"])


Values = dict[tuple[tuple[str, ...], str, str], float]


def with_values(traced: Traced, values: Values) -> Calibration:
    """Returns the calibration of a row's device at these shares."""
    chosen = traced.shipped
    for (kinds, name, key), value in values.items():
        if traced.kind in kinds:
            new: Any = {**getattr(chosen, name), key: value} if key else value
            chosen = dataclasses.replace(chosen, **{name: new})
    return chosen


def fit(rows: Sequence[Traced], report: Callable[[str], object]) -> Values:
    """Returns the shares with the least errors of these rows, each pulled to where it began."""
    start: Values = {}
    for parameter in PARAMETERS:
        kinds, name, key = parameter
        mine = next((row.shipped for row in rows if row.kind in kinds), None)
        if mine is not None:
            # Kernels without a share of their own reach what matmuls do.
            shared = mine.compute_share if name == "kernel_shares" else 1.0
            # A share of nothing couldn't move by a factor.
            start[parameter] = max(0.05, getattr(mine, name).get(key, shared) if key else getattr(mine, name))
    names = list(start)
    cache: dict[tuple[str, Calibration], float] = {}

    def error(row: Traced, values: Values) -> float:
        chosen = with_values(row, values)
        key = row.row["id"], dataclasses.astuple(chosen).__repr__()
        if key not in cache:
            cache[key] = row.error(chosen)
        return cache[key]

    def values_at(moved: np.ndarray) -> Values:
        # Nothing reaches more than all of its figure, but for what isn't a share.
        most = {"estimate_factor": 2.0, "narrow_shares": 2.0}
        moves = zip(names, moved, strict=True)
        return {name: min(start[name] * math.exp(move), most.get(name[1], 1.0)) for name, move in moves}

    def residuals(moved: np.ndarray) -> np.ndarray:
        values = values_at(moved)
        off = np.array([error(row, values) for row in rows]) / _TOLERATED
        # Large errors have causes that no share describes: they pull with their size, not its square.
        pull = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        return np.concatenate([pull, moved / _NEAR])

    found = least_squares(residuals, np.zeros(len(names)), diff_step=0.02, max_nfev=12)
    report(f"fitted {len(names)} shares on {len(rows)} rows: cost {found.cost:.3g} after {found.nfev} rounds\n")
    return values_at(found.x)


def table(rows: Sequence[tuple[Row, dict[str, Any]]], fitted: frozenset[str]) -> list[str]:
    """Returns the halves' median and worst by class as markdown."""
    lines = ["| | fitted half | judged half |", "|---|---|---|"]
    for name in sorted({class_of(row) for row, _ in rows}):
        cells = []
        for half in (True, False):
            off = [abs(p["off"]) for r, p in rows if class_of(r) == name and (r["id"] in fitted) == half and "off" in p]
            text = f"{len(off)} rows, median {statistics.median(off):.1%}, worst {max(off):.1%}" if off else "none"
            cells.append(text.replace("%", " %"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def planned(plan: Traced | str, values: Values) -> dict[str, Any]:
    """Returns the time of a row at these shares and its parts, or why there is no plan."""
    if isinstance(plan, str):
        return {"error": plan}
    seconds = plan.seconds(with_values(plan, values))
    exposed = {f"{axes} over {link}": value for (axes, link), value in seconds.exposed.items()}
    parts = {"compute": seconds.compute, "memory": seconds.memory, "exposed": exposed}
    return {"seconds": seconds.total, **parts, "off": seconds.total / plan.row["step_seconds"] - 1}


def markdown(results: Sequence[tuple[Row, dict[str, Any]]], fitted: frozenset[str]) -> list[str]:
    """Returns both halves by class and every row; * marks the fitted half."""
    lines = [*table(results, fitted), ""]
    for name in sorted({class_of(row) for row, _ in results}):
        lines += [f"| {name} | published s | planned s | error |", "|---|--:|--:|--:|"]
        for row, plan in results:
            if class_of(row) == name and "off" in plan:
                star = " *" * (row["id"] in fitted)
                off = f"{plan['off']:+.1%}".replace("%", " %")
                lines.append(f"| {row['id']}{star} | {row['step_seconds']:.4g} | {plan['seconds']:.4g} | {off} |")
        lines.append("")
    missing = [f"{row['id']} ({plan['error']})" for row, plan in results if "error" in plan]
    return [*lines, *[f"Without a plan: {'; '.join(missing)}."] * bool(missing)]


def main() -> int:
    """Traces every row, fits if asked to, and prints both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="rows whose id has this text")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    said = sys.stderr.write
    rows = rows_of(_HERE / "published.json")
    fitted = fitted_ids(rows)
    plans: dict[str, Traced | str] = {}
    for row in rows:
        if args.only and not any(text in row["id"] for text in args.only):
            continue
        begin = time.perf_counter()
        try:
            plans[row["id"]] = traced = Traced(row)
            said(
                f"{row['id']}: {math.expm1(traced.error(traced.shipped)):+.1%} in {time.perf_counter() - begin:.0f} s\n"
            )
        except (KanawaError, ValueError, TypeError, KeyError) as error:
            plans[row["id"]] = (str(error).splitlines() or [type(error).__name__])[0]
            said(f"{row['id']}: {plans[row['id']]}\n")
    values: Values = {}
    if args.fit:
        values = fit([p for name, p in plans.items() if isinstance(p, Traced) and name in fitted], said)
        for (kinds, name, key), value in values.items():
            said(f"  {', '.join(kinds)}: {name}{key and f' of {key}'} {value:.3g}\n")
    results = [(row, planned(plans[row["id"]], values)) for row in rows if row["id"] in plans]
    lines = markdown(results, fitted)
    sys.stdout.write("\n".join(lines) + "\n")
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n", "utf-8")
    if args.json:
        args.json.write_text(json.dumps([{"id": row["id"], **plan} for row, plan in results], indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
