"""Long sound in windows that a model takes, cut where it is quietest."""

import numpy as np

#: Of each second: sound this long is compared, and cut in its middle.
_FRAME = 0.1
#: The share of a window, at its end, in which it may be cut.
_SEARCHED = 3


def windows(samples: np.ndarray, most: int, rate: int) -> list[tuple[int, int]]:
    """Returns where windows of at most `most` samples begin and end; together they are the whole sound, in order.

    A cut is in the middle of the quietest tenth of a second of the last third of a window.
    """
    found, start, frame = [], 0, max(1, min(int(rate * _FRAME), most // (2 * _SEARCHED)))
    while len(samples) - start > most:
        first = start + most - most // _SEARCHED
        searched = samples[first : start + most]
        loudness = np.square(searched[: len(searched) // frame * frame].reshape(-1, frame).astype(np.float64)).sum(1)
        cut = first + int(loudness.argmin()) * frame + frame // 2
        found.append((start, cut))
        start = cut
    return [*found, (start, len(samples))]
