"""Guessing from the text itself: what followed the last tokens where they stood before (prompt lookup)."""

from collections.abc import Sequence


class NgramIndex:
    """Where each run of `least` to `most` tokens of a sequence last ended; grows with it, in constant time a token."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Returns up to `count` tokens that followed the longest known run that the sequence ends with; none without.

        `tokens` are those of the call before and more.
        """
        # All but the last position: a run must not be found where it stands itself.
        for end in range(self._indexed + 1, len(tokens)):
            for size in range(self._least, min(self._most, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size in range(min(self._most, len(tokens) - 1), self._least - 1, -1):
            end = self._ends.get(tuple(tokens[len(tokens) - size :]))
            if end is not None:
                return list(tokens[end : end + count])
        return []
