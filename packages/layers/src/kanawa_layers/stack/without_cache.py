"""Stacks of equal blocks that have no cache: those of encoders."""

from typing import Any

import kanawa as kn

from kanawa_layers.stack.equal_blocks import EqualBlocks


class CachelessStack(EqualBlocks):
    """Equal blocks, each of which sees all tokens at once. A subclass says which of them `forward` runs."""

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns nothing: what sees all tokens at once has no cache."""
        del rows, length, dtype
        return ()
