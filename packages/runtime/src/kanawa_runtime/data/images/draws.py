"""Random numbers of a row: a function of integers only, so that a row is augmented alike on any machine."""

from kanawa_runtime.data.permutation import stream_key


class Draws:
    """The uniform numbers of one stream, in order; its key are integers, such as a seed, a row and a place."""

    def __init__(self, *key: int) -> None:
        self._key = key
        self._count = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Returns the next number, in [low, high)."""
        self._count += 1
        # 53 bits, which a float holds.
        return low + (high - low) * ((stream_key(*self._key, self._count) >> 11) * 2.0**-53)

    def below(self, count: int) -> int:
        """Returns the next integer, from 0 to `count` - 1."""
        return int(self.uniform() * count)
