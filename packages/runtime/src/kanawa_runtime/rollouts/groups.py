"""Draws the groups of a batch: completions of each prompt and their rewards; other prompts where those are equal."""

import collections
import dataclasses
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.config import public_name
from kanawa.contracts.data import Tokenizer

from kanawa_runtime.rollouts.exchange import Exchange
from kanawa_runtime.rollouts.judge import Failure, Judge, Judgement, RewardError
from kanawa_runtime.rollouts.prompts import Asked
from kanawa_runtime.rollouts.rewards import Rollout
from kanawa_runtime.rollouts.sampler import Drawn, RolloutError

logger = logging.getLogger(__name__)

#: Draws a completion of each question; the places are those in the global batch, the last number is the attempt.
Draw = Callable[[Sequence[Asked], Sequence[int], int], list[Drawn]]


class Groups(NamedTuple):
    """A batch's rollouts: questions and completions of this process's rows, and numbers of all rows, global.

    `rewards` are float64 [rows, rewards]; `left_out` says which rows belong to groups that are left out.
    """

    asked: list[Asked]
    drawn: list[Drawn]
    rewards: np.ndarray
    left_out: np.ndarray
    failures: dict[int, Failure]
    tokens: int
    redrawn: int


@dataclasses.dataclass(frozen=True)
class GroupWriter:
    """Draws and rates groups. `rows` are this process's places in the batch of `size`.

    `weights` are those of the judge's rewards. A group whose reward failed is left out where `skips_failed`, and is an
    error elsewhere. `attempts` is how many prompts a group may try until its rewards differ (DAPO's dynamic sampling,
    arXiv:2503.14476, section 3.2).
    """

    judge: Judge
    weights: np.ndarray
    size: int
    rows: range
    group_size: int
    attempts: int
    skips_failed: bool
    tokenizer: Tokenizer | None
    exchange: Exchange

    def write(
        self, asked: Callable[[int, int], Asked], draw: Draw, on_rated: Callable[[], None] = lambda: None
    ) -> Groups:
        """Returns the groups of a batch; `asked` gives the question at a place, at an attempt. All processes call.

        `on_rated` is called after each attempt's rewards, before processes exchange them.

        Raises RewardError, and whatever asking and drawing raise, on every process.
        """
        questions: dict[int, Asked] = {}
        drawn: dict[int, Drawn] = {}
        rewards = np.full((self.size, len(self.judge.names)), np.nan)
        tokens = np.zeros(self.size, np.int64)
        failures: dict[int, Failure] = {}
        redrawn, open_places = 0, np.ones(self.size, bool)
        for attempt in range(self.attempts):
            places = [place for place in self.rows if open_places[place]]
            told = self._told(places, attempt, asked, draw, questions, drawn, on_rated)
            failures = {place: why for place, why in failures.items() if not open_places[place]}
            rewards[open_places] = np.nan
            for place, value, count, failure in merged(self.exchange.all(told)):
                rewards[place], tokens[place] = value, count
                if failure is not None:
                    failures[place] = Failure(*failure)
            self._check(failures)
            open_places = np.repeat(self._alike(rewards), self.group_size)
            if attempt + 1 == self.attempts or not open_places.any():
                break
            redrawn += int(open_places.sum()) // self.group_size
        left_out = np.repeat(self._failed(rewards), self.group_size)
        if left_out.all():
            first = failures[min(failures)]
            message = f"every group of the batch has a reward that failed; the first: {first.text}"
            raise RewardError(message)
        mine = list(self.rows)
        return Groups(
            [questions[place] for place in mine], [drawn[place] for place in mine], rewards, left_out, failures,
            int(tokens.sum()), redrawn,
        )  # fmt: skip

    def _told(
        self, places: list[int], attempt: int, asked: Callable[[int, int], Asked], draw: Draw,
        questions: dict[int, Asked], drawn: dict[int, Drawn], on_rated: Callable[[], None],
    ) -> dict[str, Any]:  # fmt: skip
        """Draws and rates this process's open places; returns what the others have to know, as JSON."""
        try:
            new = [asked(place, attempt) for place in places]
            # Also without any places: other processes may have some, and call for their part.
            answers = draw(new, places, attempt)
            questions |= zip(places, new, strict=True)
            drawn |= zip(places, answers, strict=True)
            judged = self.judge.rate([rollout_of(*pair, self.tokenizer) for pair in zip(new, answers, strict=True)])
        except Exception as error:
            on_rated()
            if self.exchange.is_alone:
                raise
            # The others wait for this process: they hear of it before it leaves.
            self.exchange.all({"error": f"{type(error).__name__}: {error}"})
            raise
        on_rated()
        return _as_json(places, answers, judged)

    def _check(self, failures: dict[int, Failure]) -> None:
        if failures and not self.skips_failed:
            first = failures[min(failures)]
            message = (
                f"{first.text}. Fix it, and run the same command again; with rollouts.skips_failed=true the group is "
                "left out instead"
            )
            raise RewardError(message)
        if failures:
            first = failures[min(failures)]
            logger.warning("%d rollouts of this batch weren't rated; the first: %s", len(failures), first.text)

    def _failed(self, rewards: np.ndarray) -> np.ndarray:
        failed: np.ndarray = np.isnan(rewards).any(1).reshape(-1, self.group_size).any(1)
        return failed

    def _alike(self, rewards: np.ndarray) -> np.ndarray:
        """Returns which groups teach nothing: their rewards are all equal, or one failed."""
        groups = self.totals(rewards).reshape(-1, self.group_size)
        alike: np.ndarray = ~(groups.max(1) > groups.min(1))
        return alike

    def totals(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the weighted sums of rewards [rows, rewards]; NaN where one failed."""
        totals: np.ndarray = rewards @ self.weights
        return totals


def merged(told: Sequence[dict[str, Any]]) -> list[tuple[int, list[float], int, list[str] | None]]:
    """Returns (place, rewards, tokens, failure) of all places, from what each process reports.

    Where several hold the same rows, the first one's rewards count. Raises RolloutError where a process failed, or
    two drew different tokens for a row.
    """
    found: dict[int, tuple[int, list[float], int, list[str] | None]] = {}
    digests: dict[int, int] = {}
    for index, one in enumerate(told):
        if "error" in one:
            message = f"process {index} can't write its rollouts: {one['error']}"
            raise RolloutError(message)
        columns = (one[name] for name in ("places", "values", "tokens", "digests", "failures"))
        for place, value, count, digest, failure in zip(*columns, strict=True):
            if digests.setdefault(place, digest) != digest:
                message = (
                    f"row {place} of the batch was drawn differently by process {index}: processes that share rows "
                    "have to draw the same tokens, and their hardware or libraries differ"
                )
                raise RolloutError(message)
            numbers = [float("nan") if x is None else x for x in value]
            found.setdefault(place, (place, numbers, count, failure))
    return [found[place] for place in sorted(found)]


def _as_json(places: list[int], drawn: list[Drawn], judged: Judgement) -> dict[str, Any]:
    return {
        "places": places,
        "values": [[None if np.isnan(x) else float(x) for x in row] for row in judged.values],
        "tokens": [one.num_drawn for one in drawn],
        "digests": [zlib.crc32(np.asarray(one.ids, np.int32).tobytes()) for one in drawn],
        "failures": [list(judged.failures[row]) if row in judged.failures else None for row in range(len(places))],
    }


def advantages_of(function: Callable[[np.ndarray], Any], groups: np.ndarray) -> np.ndarray:
    """Returns what `rollouts.advantages` makes of rewards [groups, members], one a row; raises RewardError."""
    what = f"rollouts.advantages, {public_name(function)},"
    try:
        advantages = np.asarray(function(groups), np.float32)
    except Exception as error:
        message = f"{what} raised {type(error).__name__}: {error}; for rewards {list(groups.shape)}"
        raise RewardError(message) from error
    if advantages.shape != groups.shape or not np.isfinite(advantages).all():
        message = (
            f"{what} gave {list(advantages.shape)} for "
            f"rewards {list(groups.shape)}, or numbers that aren't finite; expected one finite number a reward"
        )
        raise RewardError(message)
    return advantages.reshape(-1)


def figures_of(groups: Groups, writer: GroupWriter) -> dict[str, Any]:
    """Returns what the step's event says of a batch's rewards."""
    rated = groups.rewards[~groups.left_out]
    totals = writer.totals(rated).reshape(-1, writer.group_size)
    figures: dict[str, Any] = {
        "reward": float(totals.mean()),
        "groups_alike": float(np.mean(totals.max(1) == totals.min(1))),
        # The loss may be a mean over rows, so that its weight doesn't count tokens.
        "tokens": float(groups.tokens),
    }
    if len(writer.judge.names) > 1:
        figures["rewards"] = dict(zip(writer.judge.names, rated.mean(0).tolist(), strict=True))
    if writer.attempts > 1:
        figures["groups_redrawn"] = groups.redrawn
    if writer.skips_failed:
        figures["groups_left_out"] = int(groups.left_out.sum()) // writer.group_size
    if groups.failures:
        figures["reward_failures"] = dict(collections.Counter(one.kind for one in groups.failures.values()))
    return figures


def rollout_of(asked: Any, drawn: Drawn, tokenizer: Tokenizer | None) -> Rollout:
    """Returns what a reward function gets, with texts where there is a tokenizer; a stop token has none."""
    texts = {}
    if tokenizer is not None:
        ids = {"prompt": asked.prompt, "completion": drawn.ids, "answer": asked.answer}
        # A model may have more ids than its tokenizer, and draw them.
        known = tokenizer.vocab_size
        texts = {name: tokenizer.decode([i for i in some if i < known]) for name, some in ids.items()}
    reason = drawn.finish_reason
    return Rollout(
        prompt_ids=asked.prompt, completion_ids=drawn.ids, answer_ids=asked.answer, finish_reason=reason,
        record=getattr(asked, "record", {}), episode=drawn.episode, **texts,
    )  # fmt: skip
