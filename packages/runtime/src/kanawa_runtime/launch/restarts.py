"""How often, and after how long, a gang is started again: the count that supervisors of ours keep."""

from collections.abc import Sequence

from kanawa_runtime.exit_codes import gang_code, saved_by_all, verdict

#: An attempt that lasted so long was no part of a crash loop: the next one starts without delay.
_STEADY_SECONDS = 600.0
_MOST_CHARACTERS = 500


class Restarts:
    """Counts what was `lost`, at most `retries` times, apart from the `stops` after which everything was saved.

    The first delay is `backoff_seconds`; each further one doubles it, up to `most_backoff_seconds`.
    """

    def __init__(self, retries: int, backoff_seconds: float, most_backoff_seconds: float) -> None:
        self.retries = retries
        self.lost = 0
        self.stops = 0
        self._first, self._most, self._next = backoff_seconds, most_backoff_seconds, backoff_seconds

    def after(self, codes: Sequence[int], lasted_seconds: float) -> float | None:
        """Returns the delay before another attempt after one with these codes, None where there shall be none."""
        if verdict(gang_code(codes)) != "retry":
            return None
        if saved_by_all(codes):
            self.stops += 1
        elif self.lost >= self.retries:
            return None
        else:
            self.lost += 1
        if lasted_seconds > _STEADY_SECONDS:
            self._next = self._first
        delay, self._next = self._next, min(2 * self._next, self._most)
        return delay

    def last(self, codes: Sequence[int]) -> str:
        """Returns what the newest start is counted as, for people."""
        return f"stop {self.stops}, saved" if saved_by_all(codes) else f"restart {self.lost} of {self.retries}"


def reason_of(output: str) -> str:
    """Returns the line in which a process says why it ended: its error, else what it wrote last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line.removeprefix("kanawa: error: ") for line in lines if line.startswith("kanawa: error:")]
    said = said or [f"it wrote last: {line}" for line in lines[-1:]]
    return said[-1][:_MOST_CHARACTERS] if said else ""
