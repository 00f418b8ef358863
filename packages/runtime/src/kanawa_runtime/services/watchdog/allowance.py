"""How long a section of a run may take before it counts as a hang."""

from kanawa_runtime.goodput.sections import Section

#: Sections that come at every step: what is usual for them shows after a few.
_FREQUENT: tuple[Section, ...] = ("step", "data")
_FIRST, _ENOUGH = 2, 10
_FACTOR = 10.0


class Allowance:
    """Seconds by section. Steps and waits for data are learned: ten times the slowest seen, at least `least_seconds`.

    Both by the slowest of either: before a save or an evaluation, the wait for data ends with one for the last step.
    `step_seconds` is what they are allowed at most, and before ten of them were seen; `section_seconds` goes for all
    other sections, a compilation, a save or an evaluation, and for the first two steps, which wait for the slowest to
    compile.
    """

    def __init__(self, step_seconds: float, section_seconds: float, least_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._section_seconds = section_seconds
        self._least_seconds = least_seconds
        self._seen = dict.fromkeys(_FREQUENT, 0)
        self._slowest = dict.fromkeys(_FREQUENT, 0.0)

    def took(self, section: Section, seconds: float) -> None:
        """A section has ended."""
        if section in self._seen:
            self._seen[section] += 1
            self._slowest[section] = max(self._slowest[section], seconds)

    def of(self, section: Section) -> float:
        """Returns the seconds that a section may take."""
        if section not in self._seen:
            return self._section_seconds
        # The first ones wait for others that still compile.
        if self._seen["step"] < _FIRST:
            return self._section_seconds
        if self._seen[section] < _ENOUGH:
            return self._step_seconds
        return min(self._step_seconds, max(self._least_seconds, _FACTOR * max(self._slowest.values())))
