"""Ends a text at a stop string; what might still become one is held back."""

import functools


class StopStrings:
    """Passes text on until one of `stops` is complete in it.

    However the text is cut into pieces, what comes out joins to the same: the text before the stop string that is
    complete first (of several that end at the same character the longest), or after it with `include`. A character
    costs the same however long the stop strings are, and however much is held back (Knuth, Morris and Pratt).
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        #: How much of each stop string the text ends with.
        self._begun = [0] * len(stops)
        self._held = ""
        #: The stop string that ended the text, and what stood after it in the piece that completed it.
        self.hit: str | None = None
        self.rest = ""

    def push(self, text: str) -> str:
        """Returns the text that is certain by now; nothing once a stop string was hit."""
        if self.hit is not None:
            return ""
        whole = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            complete = self._complete_with(character)
            if complete is not None:
                self.hit, self._held, self.rest = complete, "", whole[end:]
                return whole[: end if self._include else end - len(complete)]
        held = max(self._begun, default=0)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def finish(self) -> str:
        """Returns what was held back: nothing follows that could complete it."""
        held, self._held = self._held, ""
        return held

    def _complete_with(self, character: str) -> str | None:
        """Takes a character; returns the longest stop string that it completes."""
        complete: str | None = None
        for index, stop in enumerate(self._stops):
            length = self._begun[index]
            while length and stop[length] != character:
                length = _fallbacks(stop)[length - 1]
            length += stop[length] == character
            self._begun[index] = length
            if length == len(stop):
                complete = max(complete or "", stop, key=len)
        return complete


@functools.lru_cache(maxsize=256)
def _fallbacks(stop: str) -> list[int]:
    """Returns for each beginning of `stop` the length of the longest shorter one that it ends with."""
    lengths, length = [0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = lengths[length - 1]
        length += stop[length] == character
        lengths.append(length)
    return lengths
