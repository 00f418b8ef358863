"""Why a placement was chosen, for origins; and what would fit where nothing does."""

import math
from collections.abc import Sequence

from kanawa.composition.target import Target

from kanawa_parallel.plan.placement.choices import Choice, Spread
from kanawa_parallel.plan.report.units import format_bytes, format_seconds
from kanawa_parallel.plan.search.evaluate import ROOM

#: How many others are named.
_NAMED = 3
#: Rows are cut to multiples of this many tokens.
_TOKENS = 128


def reason(choice: Choice, ordered: Sequence[Choice], limit: int, traced: int) -> str:
    """Returns the choice with its quick plan's figures, and the best of the others."""
    held = f"{format_bytes(choice.guess.memory_bytes)} of {format_bytes(limit)} a device"
    text = f"{choice}: {format_seconds(choice.guess.seconds)} a step, {held}"
    others: list[Choice] = []
    for each in sorted(ordered, key=lambda one: one.guess.seconds):
        told = [(one.spread, one.microbatches) for one in (choice, *others)]
        if (each.spread, each.microbatches) not in told and len(others) < _NAMED:
            others.append(each)
    after = "; ".join(f"{each} {format_seconds(each.guess.seconds)}" for each in others)
    meshes = f"{traced} mesh{'' if traced == 1 else 'es'} traced"
    return f"{text}; {meshes}{f'; next: {after}' if after else ''}"


def too_large(nearest: Choice, target: Target, length: int, limit: int) -> str:
    """Returns what the choice that lacks least lacks, and what would fit: more chips, or shorter rows."""
    needed, room = nearest.guess.memory_bytes * ROOM, limit / ROOM
    fixed = nearest.fixed_bytes + (nearest.away.memory_bytes if nearest.optimizer_away else 0.0)
    short = f"{format_bytes(needed)} a device with a tenth to spare, of {format_bytes(limit)}"
    text = f"nothing fits {target.selector}: the nearest, {nearest}, needs {short}"
    ways = [f"about {_selector(target, needed / limit)}"]
    shorter = int(length * (room - fixed) / max(1.0, nearest.guess.memory_bytes - fixed)) // _TOKENS * _TOKENS
    if shorter > 0:
        ways.append(f"rows of {shorter:,} tokens instead of {length:,}")
    return f"{text}; what would: {' or '.join(ways)}"


def too_few_rows(nearest: Spread, target: Target, rows: int) -> str:
    """Returns why a batch has too few rows for every mesh, and what would fit: more rows, or fewer chips.

    `nearest` is the mesh that divides the model's sizes and splits rows least.
    """
    parts = nearest.batch_parts
    fewer = math.gcd(rows, parts)
    text = (
        f"batch_size is {rows}, and no mesh splits a step over the {target.jax_devices} devices of {target.selector} "
        f"with so many rows: the nearest, {nearest}, needs a multiple of {parts}"
    )
    return f"{text}; what would fit: batch_size={-(-rows // parts) * parts}, or {_selector(target, fewer / parts)}"


def _selector(target: Target, times: float) -> str:
    """Returns the smallest target with so many times the chips; a slice of the largest size several times over."""
    device, chips = target.device, math.ceil(target.chips * times)
    sizes = sorted(device.topologies) or [device.chips_per_host * 2**n for n in range(20)]
    one = next((size for size in sizes if size >= chips), None)
    if one is not None:
        return f"{device.name}-{one * device.cores_per_unit}"
    return f"{device.name}-{sizes[-1] * device.cores_per_unit}x{math.ceil(chips / sizes[-1])}"
