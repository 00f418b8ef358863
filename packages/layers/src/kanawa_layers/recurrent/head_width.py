"""Splitting channels into heads of equal width."""

from kanawa.errors import ModuleError


def head_width(channels: int, heads: int, path: str) -> int:
    """Returns channels / heads; raises ModuleError where it isn't whole."""
    if channels % heads == 0:
        return channels // heads
    near = [h for h in range(heads, channels + 1) if channels % h == 0][:1]
    below = [h for h in range(heads, 0, -1) if channels % h == 0][:1]
    message = f"{path}: {channels} channels don't divide into {heads} heads; {below[0]} or {near[0]} heads would fit"
    raise ModuleError(message)
