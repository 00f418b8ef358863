"""Cost per million tokens, from a user's table of prices: {"v5p": 4.2, "h100": 2.5} a chip and hour, TOML or JSON."""

import tomllib
from pathlib import Path
from typing import Any

from kanawa.errors import UsageError, did_you_mean
from kanawa.guarded_read import UnreadableFileError, guarded_bytes, parsed_json
from kanawa.local_path import local_path

_MOST_BYTES = 2**20
_EXAMPLE = 'expected device names to prices a chip and hour, such as h100 = 2.5, maybe under [prices], and a "currency"'


def read_prices(path: Path) -> tuple[dict[str, float], str]:
    """Returns (price by device name, currency). Raises UsageError where the file isn't such a table."""
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
    # Device names are lower case; a table may write H100.
    return {name.lower(): float(price) for name, price in rows.items()}, currency


def _is_price(value: Any) -> bool:
    # NaN, infinity and true are numbers to Python, and no prices.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def price_of(prices: dict[str, float], device: str, path: Path) -> float:
    """Returns a device's price; raises UsageError naming what the table has."""
    if device not in prices:
        message = f"--prices {path} has no price for {device!r}{did_you_mean(device, prices)}"
        raise UsageError(message)
    return prices[device]


def cost_per_million_tokens(price_per_chip_hour: float, chips: int, step_seconds: float, tokens: int) -> float:
    """Returns price * chips * hours of a step, for each million of its tokens."""
    return price_per_chip_hour * chips * step_seconds / 3600 / (tokens / 1e6)
