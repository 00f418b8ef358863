"""Where a text ends because a stop string stands in it; what might still become one is held back."""


class StopStrings:
    """Passes text on until one of `stops` is complete in it.

    However the text is cut into pieces, what comes out joins to the same: the text before the stop string that is
    complete first (of several that end at the same character the longest), or after it with `include`.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        #: The stop string that ended the text, and what stood after it in the piece that completed it.
        self.hit: str | None = None
        self.rest = ""

    def push(self, text: str) -> str:
        """Returns the text that is certain by now; nothing once a stop string was hit."""
        if self.hit is not None:
            return ""
        whole = self._held + text
        places = [(start + len(stop), start, stop) for stop in self._stops if (start := whole.find(stop)) >= 0]
        if places:
            end, start, self.hit = min(places)
            self._held, self.rest = "", whole[end:]
            return whole[: end if self._include else start]
        held = max((_overlap(whole, stop) for stop in self._stops), default=0)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def finish(self) -> str:
        """Returns what was held back: nothing follows that could complete it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of `text` that `stop`, longer than it, begins with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
