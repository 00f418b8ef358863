"""Which config field sets a parameter's size, found by changing numbers: no layer has to declare it.

A number that is changed and with which the size changes is where the size comes from. That costs a build of the model
for each number tried, and happens only when something doesn't fit.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import kanawa as kn
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Workload
from kanawa.errors import KanawaError
from kanawa.module import param_specs

#: What a layer may raise that is built with a number it wasn't made for.
_REFUSALS = (KanawaError, ValueError, TypeError, ArithmeticError, LookupError)


class Dimension(NamedTuple):
    """One dimension of a parameter: its path below the model, and where it stands in its shape."""

    path: str
    position: int


def size_fields(config: Workload.Config, dimensions: Sequence[Dimension]) -> list[str]:
    """Returns the config fields that set these dimensions, which have one size; a parameter's own path if none does."""
    sizes = _sizes(config)
    left, fields = list(dimensions), []
    while left:
        first = left[0]
        field, changed = _source(config, first, sizes[first.path][first.position])
        fields.append(field or f"model.{first.path}")
        # The same number sets most of the others: their sizes have changed with it.
        left = [d for d in left[1:] if not field or d.path not in changed or _same(d, sizes, changed)]
    return list(dict.fromkeys(fields))


def _source(config: Workload.Config, dimension: Dimension, size: int) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Returns (field, all sizes once it is changed) of the nearest number that sets the dimension; "" if none does."""
    numbers = list(_numbers(config, dimension.path))
    # A number that equals the size is the likeliest; the sort is stable, so among equals the nearest stays first.
    for field, value in sorted(numbers, key=lambda number: number[1] != size):
        # Twice as much keeps what has to divide (heads by groups, widths by heads); one more serves where that is
        # refused.
        changed = _with(config, field, 2 * value) or _with(config, field, value + 1)
        now = changed.get(dimension.path)
        if now is not None and now[dimension.position : dimension.position + 1] != (size,):
            return field, changed
    return "", {}


def _numbers(config: Workload.Config, path: str) -> Iterator[tuple[str, int]]:
    """Yields (config path, value) of the whole numbers in the parameter's module and in all above it, nearest first."""
    segments = f"model.{path}".split(".")[:-1]
    while segments:
        at = ".".join(segments)
        try:
            node = config.get(at)
        except KanawaError:
            node = None
        if isinstance(node, kn.Config):
            for field in node.fields():
                value = getattr(node, field)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    yield f"{at}.{field}", value
        segments.pop()


def _with(config: Workload.Config, field: str, value: int) -> dict[str, tuple[int, ...]]:
    """Returns the parameters' shapes with one field changed; empty where the model refuses that."""
    try:
        changed = config.clone()
        changed.set_path(field, value)
        return _sizes(changed)
    except _REFUSALS:
        return {}


def _sizes(config: Workload.Config) -> dict[str, tuple[int, ...]]:
    flat = flatten_paths(param_specs(config.model.build()))
    return {path: spec.shape for path, spec in flat.items() if isinstance(spec, ParamSpec)}


def _same(dimension: Dimension, before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> bool:
    old, new = before[dimension.path], after[dimension.path]
    return old[dimension.position] == new[dimension.position] if len(old) == len(new) else False
