"""Cost per million tokens, from a user's table of prices, a chip and hour, by device name: TOML or JSON."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kanawa.composition.experiment import Composition
from kanawa.errors import UsageError, did_you_mean
from kanawa.guarded_read import UnreadableFileError, guarded_bytes, parsed_json
from kanawa.local_path import local_path

from kanawa_parallel.plan.report.report import Report

_MOST_BYTES = 2**20
_EXAMPLE = 'expected device names to prices a chip and hour, maybe under [prices], and a "currency"'


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of a chip and hour by device name, in one currency."""

    by_device: Mapping[str, float]
    currency: str = "USD"

    def priced(self, report: Report, device: str) -> Report:
        """Returns the report with its cost, if its step runs."""
        if not report.step_seconds:
            return report
        hours = self.by_device[device] * report.chips * report.step_seconds / 3600
        cost = hours / (report.tokens_per_step / 1e6)
        return dataclasses.replace(report, cost_per_million_tokens=cost, currency=self.currency)


def prices_for(path: Path | None, compositions: Iterable[Composition]) -> Prices | None:
    """Returns the table of `--prices`; None without one. Raises UsageError where a target's device isn't in it."""
    if path is None:
        return None
    prices = read_prices(path)
    for composition in compositions:
        device = composition.required_target().device.name
        if device not in prices.by_device:
            message = f"--prices {path} has no price for {device!r}{did_you_mean(device, prices.by_device)}"
            raise UsageError(message)
    return prices


def read_prices(path: Path) -> Prices:
    """Returns the table of a file; raises UsageError where the file has none."""
    try:
        content = guarded_bytes(local_path(path, "--prices"), most=_MOST_BYTES)
        table = parsed_json(content) if path.suffix == ".json" else tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError, UnreadableFileError) as error:
        message = f"--prices {path}: {error}; {_EXAMPLE}"
        raise UsageError(message) from error
    currency = str(table.pop("currency", "USD")) if isinstance(table, dict) else ""
    rows: Any = table.get("prices", table) if isinstance(table, dict) else None
    good = isinstance(rows, dict) and all(map(_is_price, rows.values()))
    if not good or not rows:
        message = f"--prices {path} isn't a table of prices; {_EXAMPLE}"
        raise UsageError(message)
    # Device names are lower case; a table may use upper case.
    return Prices({name.lower(): float(price) for name, price in rows.items()}, currency)


def _is_price(value: Any) -> bool:
    # NaN, infinity and true are numbers to Python, and no prices.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
