"""What loggers of curves have in common: which numbers of an event are points, and the library that each needs."""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.errors import UsageError

#: Kinds of events whose numbers are drawn over steps, and what their names begin with.
PREFIXES = {"step": "train", "eval": "eval", "checkpoint_committed": "checkpoint"}
#: Members of every record that are no measurement.
_NOT_DRAWN = ("event", "attempt", "step", "time", "clock")


def points(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields ("train/loss", 2.31), …: every number of a step, an evaluation or a checkpoint, metrics included.

    Non-finite numbers come as such. A step also has `train/tokens_per_second`.
    """
    prefix = PREFIXES.get(str(event.get("event")))
    if prefix is None:
        return
    for name, value in event.items():
        if name in _NOT_DRAWN:
            continue
        members = value.items() if isinstance(value, Mapping) else ((name, value),)
        for key, member in members:
            number = _number(member)
            if number is not None:
                yield f"{prefix}/{key}", number
    seconds, tokens = _number(event.get("seconds")), _number(event.get("tokens"))
    if prefix == "train" and seconds and tokens is not None:
        yield "train/tokens_per_second", tokens / seconds


def _number(value: Any) -> float | None:
    """Returns a record's number; its strings for non-finite ones become those again."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else None


class MissingExtraError(UsageError):
    """A service's library isn't installed."""


def require(module: str, extra: str, service: str) -> None:
    """Raises MissingExtraError unless `module` can be imported; imports nothing."""
    if importlib.util.find_spec(module) is not None:
        return
    message = (
        f"service {service!r} needs {module}, which isn't installed; nothing was started. "
        f'Run: pip install "kanawa-runtime[{extra}]", or leave the service out'
    )
    raise MissingExtraError(message)
