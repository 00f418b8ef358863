"""How large a tile each kernel takes, by chip, head width and bytes of a number; warps and stages with it."""

import dataclasses

import jax.numpy as jnp
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel, Tuning
from kanawa.kernels.platform import current_platform
from kanawa.plugins import DeviceSpec
from kanawa.plugins.devices import device_spec_of_kind

#: What the matrix units take at least.
SMALLEST = 16


@dataclasses.dataclass(frozen=True)
class Size:
    """One kernel's tile: queries by keys, warps of a program, and how many tiles are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The tiles of the three kernels; a bias's gradient takes the queries' own."""

    forward: Size
    queries: Size
    keys: Size


#: By the widest head, for numbers of two bytes. Ampere takes Hopper's: its shared memory is 163 KiB.
_HOPPER = {
    64: Sizes(Size(128, 64, 4, 3), Size(128, 64, 8, 2), Size(64, 128, 8, 2)),
    128: Sizes(Size(128, 64, 8, 3), Size(128, 64, 8, 2), Size(64, 128, 8, 2)),
    256: Sizes(Size(128, 32, 8, 2), Size(64, 32, 8, 2), Size(32, 64, 8, 2)),
}
#: Products land in tensor memory and are copied to registers to be used, so the gradients' tiles are smaller.
_BLACKWELL = {
    **_HOPPER,
    128: Sizes(Size(128, 64, 8, 3), Size(128, 64, 8, 2), Size(64, 64, 8, 2)),
    256: Sizes(Size(128, 32, 8, 2), Size(64, 32, 8, 2), Size(32, 32, 8, 2)),
}
#: Products of fp32 don't run on the matrix units, and every thread holds its share of both factors.
_SINGLE = {
    64: Sizes(Size(64, 32, 4, 1), Size(32, 32, 4, 1), Size(32, 32, 4, 1)),
    128: Sizes(Size(32, 32, 8, 1), Size(16, 32, 8, 1), Size(32, 16, 8, 1)),
    256: Sizes(Size(32, 32, 8, 1), Size(16, 32, 8, 1), Size(32, 16, 8, 1)),
}
_TABLES = {"hopper": _HOPPER, "blackwell": _BLACKWELL, "single": _SINGLE}
WIDEST = 256


def size_of(kernel: Kernel, problem: AttentionProblem, part: str) -> Size:
    """Returns the tile of one part, `forward`, `queries` or `keys`, no larger than the problem's rows.

    A tuning says otherwise by names such as `forward_queries`, `keys_warps`.
    """
    _, kind = current_platform()
    device = None if kind is None else device_spec_of_kind(kind)
    own = getattr(_table(problem, device), part)
    fields = (f.name for f in dataclasses.fields(own))
    return _fitted(Size(**{name: kernel.setting(f"{part}_{name}", getattr(own, name)) for name in fields}), problem)


def tunings(problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
    """Returns, for one part at a time, half and twice as many queries or keys, more warps, more loaded ahead."""
    result: list[Tuning] = []
    for part in ("forward", "queries", "keys") if problem.mode == "train" else ("forward",):
        own = getattr(_table(problem, device), part)
        numbers = [("queries", own.queries // 2), ("queries", own.queries * 2), ("keys", own.keys // 2)]
        numbers += [("keys", own.keys * 2)]
        result += [((f"{part}_{name}", number),) for name, number in numbers if number >= SMALLEST]
        result += [((f"{part}_warps", 12 - own.warps),), ((f"{part}_stages", own.stages + 1),)]
    return tuple(result)


def _table(problem: AttentionProblem, device: DeviceSpec | None) -> Sizes:
    width = max(problem.head_dim, problem.v_head_dim)
    single = jnp.dtype(problem.dtype).itemsize == 4
    family = "single" if single else "blackwell" if device is not None and device.family == "blackwell" else "hopper"
    table = _TABLES[family]
    return table[min(widest for widest in table if widest >= width)]


def _fitted(size: Size, problem: AttentionProblem) -> Size:
    return dataclasses.replace(
        size,
        queries=min(size.queries, _power(problem.q_length)),
        keys=min(size.keys, _power(problem.kv_length)),
    )


def _power(length: int) -> int:
    """Returns the smallest power of two that holds `length`, and no less than the matrix units take."""
    return max(SMALLEST, 1 << (length - 1).bit_length())
