"""Runs the rewards of rollouts: in order, within a time limit, and what happens where one fails."""

import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.config import public_name
from kanawa.errors import KanawaError

from kanawa_runtime.rollouts.rewards import Rollout

#: The names of what a reward model says, and of the reward that DAPO's soft overlong punishment adds.
REWARD_MODEL, OVERLONG = "reward_model", "overlong"


class RewardError(KanawaError):
    """A reward raised, took too long, or returned no finite number."""


class Failure(NamedTuple):
    """A reward that failed for a rollout: the kind it is counted under, and the sentence that a person reads."""

    kind: str
    text: str


class Judgement(NamedTuple):
    """The rewards of some rollouts, float64 [rollouts, rewards], NaN where one failed; and those failures, by row."""

    values: np.ndarray
    failures: dict[int, Failure]

    def row(self, index: int) -> np.ndarray:
        """Returns the rewards of one rollout."""
        values: np.ndarray = self.values[index]
        return values


class Judge:
    """Rates rollouts by several functions. `seconds` limits each call (None: none), `names` are those of the rewards.

    `model` rates many rollouts at once, after the functions.
    With `overlong_tokens`, the last so many of the tokens a rollout may have cost up to one reward (DAPO,
    arXiv:2503.14476, equation 13).
    """

    def __init__(
        self, functions: Sequence[Callable[[Rollout], Any]], *, seconds: float | None = None, overlong_tokens: int = 0,
        new_tokens: int = 0, model: Callable[[Sequence[Rollout]], np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._functions, self._model = list(functions), model
        self.names = reward_names(functions, has_model=model is not None, has_overlong=overlong_tokens > 0)
        self._seconds, self._overlong, self._new_tokens = seconds, overlong_tokens, new_tokens
        self._caller = _Caller()

    def rate(self, rollouts: Sequence[Rollout]) -> Judgement:
        """Returns the rewards of rollouts; never raises for what a reward does."""
        values = np.full((len(rollouts), len(self.names)), np.nan)
        failures: dict[int, Failure] = {}
        for row, rollout in enumerate(rollouts):
            for column, function in enumerate(self._functions):
                found = self._rated(function, rollout)
                if isinstance(found, Failure):
                    failures.setdefault(row, found)
                else:
                    values[row, column] = found
            if self._overlong:
                values[row, -1] = overlong_penalty(len(rollout.completion_ids), self._new_tokens, self._overlong)
        if self._model is not None:
            rated = values[:, len(self._functions)] = self._model(rollouts)
            for row in np.flatnonzero(~np.isfinite(rated)).tolist():
                failures.setdefault(row, Failure("not_finite", f"the reward model gave {rated[row]}"))
                values[row, len(self._functions)] = np.nan
        return Judgement(values, failures)

    def _rated(self, function: Callable[[Rollout], Any], rollout: Rollout) -> float | Failure:
        what = f"the reward {public_name(function)}"
        of = f"for the prompt {rollout.prompt or list(rollout.prompt_ids)!r}"
        try:
            reward = float(self._caller.called(lambda: function(rollout), self._seconds))
        except _TookTooLong:
            limit = f"rollouts.reward_seconds={self._seconds:g}"
            return Failure("timed_out", f"{what} took longer than {limit} {of}")
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; the caller decides
            return Failure("raised", f"{what} raised {type(error).__name__}: {error}; {of}")
        if not math.isfinite(reward):
            return Failure("not_finite", f"{what} gave {reward} {of}; expected a finite number")
        return reward


def reward_names(
    functions: Sequence[Callable[..., Any]], *, has_model: bool = False, has_overlong: bool
) -> list[str]:  # fmt: skip
    """Returns a short name for each reward, that of the catalog or of the function; equal ones are numbered."""
    names: list[str] = []
    for function in functions:
        short = public_name(function).rpartition(":")[2].rpartition(".")[2].replace("-", "_")
        taken = sum(name == short or name.startswith(f"{short}_") for name in names)
        names.append(f"{short}_{taken + 1}" if taken else short)
    return names + [REWARD_MODEL] * has_model + [OVERLONG] * has_overlong


def overlong_penalty(length: int, most: int, cache: int) -> float:
    """Returns 0 up to `most - cache` tokens, then falls linearly to -1 at `most` (DAPO, equation 13)."""
    return -min(max(length - (most - cache), 0) / cache, 1.0)


class _TookTooLong(Exception):  # noqa: N818 - it never leaves this file
    pass


class _Caller:
    """Calls functions on a thread that is abandoned where one takes too long: Python can't end it."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Any] | None = None

    def called(self, function: Callable[[], Any], seconds: float | None) -> Any:
        """Returns the result, or raises what the function does; _TookTooLong after so many seconds."""
        if seconds is None:
            return function()
        if self._work is None:
            self._work = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._work,), name="kanawa-reward", daemon=True).start()
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._work.put((function, answer))
        try:
            is_well, result = answer.get(timeout=seconds)
        except queue.Empty:
            # The thread ends after this call, should it ever return.
            self._work.put(None)
            self._work = None
            raise _TookTooLong from None
        if not is_well:
            raise result
        return result


def _serve(work: "queue.SimpleQueue[Any]") -> None:
    while (asked := work.get()) is not None:
        function, answer = asked
        try:
            answer.put((True, function()))
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            answer.put((False, error))
