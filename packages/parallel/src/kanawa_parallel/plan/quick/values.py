"""The values in memory at a step's fullest moment, by module and by the names that layers tag them with."""

from collections import Counter
from collections.abc import Iterable

from kanawa_parallel.plan.quick.buffers import Buffer
from kanawa_parallel.plan.read.attribution import module_of
from kanawa_parallel.plan.report.report import HeldRow

#: What a value without a name is called: by its role.
_STACKED, WORKING = "saved for each layer", "in use"


def estimated_values(at_peak: Iterable[Buffer], paths: frozenset[str]) -> list[HeldRow]:
    """Returns the values of a quick plan's fullest moment, largest first."""
    total: Counter[tuple[str, str]] = Counter()
    for buffer in at_peak:
        total[name_of(buffer, paths)] += round(buffer.bytes)
    return value_rows(total)


def name_of(buffer: Buffer, paths: frozenset[str]) -> tuple[str, str]:
    """Returns the module that a traced value belongs to, and what it is called there."""
    role = _STACKED if buffer.stacked else WORKING
    return module_of(buffer.path, paths), f"{buffer.tag}, {role}" if buffer.tag else role


def value_rows(total: Counter[tuple[str, str]]) -> list[HeldRow]:
    """Returns the rows of a report, largest first."""
    return [HeldRow(module, value, size) for (module, value), size in total.most_common()]
