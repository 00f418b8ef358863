"""Conversion between Hugging Face's list of layer types and the pattern of a stack."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


def period_of(kinds: Sequence[T]) -> tuple[T, ...]:
    """Returns the shortest prefix that, repeated and cut off, is the whole list."""
    # The last period may be cut off: Gemma 3 27B has 62 layers of a pattern of 6. What isn't the longest border (a
    # beginning that is also an end) is the shortest period; all borders take linear time (Knuth, Morris, Pratt).
    borders = [0] * len(kinds)
    for i in range(1, len(kinds)):
        length = borders[i - 1]
        while length and kinds[i] != kinds[length]:
            length = borders[length - 1]
        borders[i] = length + 1 if kinds[i] == kinds[length] else 0
    return tuple(kinds[: len(kinds) - borders[-1]] if kinds else kinds)


def layer_types(config: Mapping[str, Any], usual: Sequence[str]) -> tuple[str, ...]:
    """Returns the repeating pattern of a config's `layer_types`, or `usual` where it has none."""
    listed = config.get("layer_types")
    return tuple(usual) if listed is None else period_of(listed)


def repeated(pattern: Sequence[T], num_layers: int) -> list[T]:
    """Returns one entry a layer."""
    return [pattern[i % len(pattern)] for i in range(num_layers)]
