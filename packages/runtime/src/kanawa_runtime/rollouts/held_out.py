"""The reward on prompts that are never trained on: one completion of each, drawn alike at every evaluation."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from kanawa.contracts import DataSource
from kanawa.contracts.data import Tokenizer

from kanawa_runtime.rollouts.exchange import Exchange
from kanawa_runtime.rollouts.groups import rollout_of
from kanawa_runtime.rollouts.judge import Judge
from kanawa_runtime.rollouts.prompts import Asked, asked
from kanawa_runtime.rollouts.sampler import Drawn, seed_of

#: Apart from the steps, whose numbers are never negative.
_STREAM = -1


class HeldOut:
    """Draws the first `evaluation_prompts` rows of `source` and rates them; `count` is how many there are."""

    def __init__(
        self, cfg: Any, source: DataSource | None, judge: Judge, weights: np.ndarray, tokenizer: Tokenizer | None
    ) -> None:
        self._config, self._source, self._judge, self._weights = cfg, source, judge, weights
        self._tokenizer, self._exchange = tokenizer, Exchange("held-out")
        self.count: int = 0 if source is None else min(source.num_rows or 0, cfg.evaluation_prompts)

    def evaluate(
        self, seed: int, draw: Callable[[Sequence[Asked], Sequence[int]], list[Drawn]], most: int
    ) -> dict[str, Any]:
        """Returns `reward`, `rewards` by name where there are several, and over how many prompts. All processes call.

        Each process has its share drawn by seeds, at most `most` at once. Rollouts that weren't rated are left out of
        the means, and counted.
        """
        cfg, values = self._config, []
        own = range(jax.process_index(), self.count, jax.process_count())
        for begin in range(0, len(own), most):
            rows = own[begin : begin + most]
            assert self._source is not None
            questions = [asked(self._source, row, cfg.prompt_tokens) for row in rows]
            drawn = draw(questions, [seed_of(seed, _STREAM, row) for row in rows])
            rollouts = [rollout_of(*pair, self._tokenizer) for pair in zip(questions, drawn, strict=True)]
            for value in self._judge.rate(rollouts).values:
                values.append([None if np.isnan(x) else float(x) for x in value])
        every = np.asarray([row for part in self._exchange.all(values) for row in part], np.float64)
        rated = every[~np.isnan(every).any(1)]
        found: dict[str, Any] = {"prompts": self.count}
        if len(rated):
            found["reward"] = float((rated @ self._weights).mean())
            if len(self._judge.names) > 1:
                found["rewards"] = dict(zip(self._judge.names, rated.mean(0).tolist(), strict=True))
        if len(rated) < len(every):
            found["prompts_not_rated"] = len(every) - len(rated)
        return found
