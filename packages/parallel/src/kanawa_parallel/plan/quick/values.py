"""Which values lie in memory at a step's fullest moment, by module and by the names that layers give them."""

from collections import Counter
from collections.abc import Iterable

from kanawa_parallel.plan.memory.liveness import Peak
from kanawa_parallel.plan.quick.buffers import Buffer
from kanawa_parallel.plan.read.attribution import module_of
from kanawa_parallel.plan.read.shapes import arrays, device_dtype
from kanawa_parallel.plan.show.report import HeldRow

#: What a value without a name is called: by its role.
_STACKED, _WORKING = "kept for each layer", "in use"


def estimated_values(at_peak: Iterable[Buffer], paths: frozenset[str]) -> list[HeldRow]:
    """Returns the values of a quick plan's fullest moment, largest first."""
    total: Counter[tuple[str, str]] = Counter()
    for buffer in at_peak:
        total[_name(buffer, paths)] += round(buffer.bytes)
    return _rows(total)


def compiled_values(
    fullest: Peak, op_names: dict[str, str], at_peak: Iterable[Buffer], paths: frozenset[str]
) -> list[HeldRow]:
    """Returns the values of a compiled program's fullest moment, largest first.

    A loop's stacked values bear the loop's name in a compiled program. They are named after those of the traced program
    that have as many bytes in the same dtype.
    """
    stacked: dict[tuple[str, int], list[Buffer]] = {}
    for each in at_peak:
        if each.stacked:
            stacked.setdefault((each.value.dtype, round(each.bytes)), []).append(each)
    total: Counter[tuple[str, str]] = Counter()
    for buffer in fullest.buffers:
        shapes = arrays(buffer.shape)
        key = (device_dtype(shapes[0].dtype), shapes[0].bytes) if len(shapes) == 1 else ("", 0)
        alike = stacked.get(key)
        if alike:
            total[_name(alike.pop(0), paths)] += buffer.size
        else:
            owner = module_of(op_names.get(buffer.name.partition("{")[0], ""), paths)
            total[owner, _WORKING] += buffer.size
    return _rows(total)


def _name(buffer: Buffer, paths: frozenset[str]) -> tuple[str, str]:
    role = _STACKED if buffer.stacked else _WORKING
    return module_of(buffer.path, paths), f"{buffer.tag}, {role}" if buffer.tag else role


def _rows(total: Counter[tuple[str, str]]) -> list[HeldRow]:
    return [HeldRow(module, value, size) for (module, value), size in total.most_common()]
