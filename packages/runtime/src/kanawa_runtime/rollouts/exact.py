"""Completions that the training step itself draws, and their log-probabilities, bit for bit.

An engine decodes by other programs than a step trains by, so its log-probabilities differ in their last bits, in
bfloat16 by percents, and where experts are chosen by much more. Here the engine proposes: tokens are drawn with noise
that follows from a key. The step's forward half repeats all draws with the same noise. Where one differs, its token
takes the other's place and the engine continues after it, until a whole pass repeats every token. Each token is then a
draw from the trainer's distribution given the tokens before it, and the step goes on from that last pass.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from kanawa.contracts import Environment, RolloutBatch

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.rollouts.exchange import Exchange
from kanawa_runtime.rollouts.sampler import Drawn, EngineSampler
from kanawa_runtime.rollouts.written import laid_out
from kanawa_runtime.serve.engine.sequence import random_numbers
from kanawa_runtime.train.batches import global_batch, local_rows, own_rows
from kanawa_runtime.train.split_step import SplitStep, unrated

#: XLA may leave out a rounding between two operations that it joins, and joins others in a program with gradients.
_ROUNDED = {"xla_allow_excess_precision": False}


def exact_rounding(environment: Environment) -> Environment:
    """Returns the environment whose programs leave out no rounding and whose rows don't depend on each other's number.

    In float32 too few tokens differ to pay for kernels that compute rows alike.
    """
    plan = dataclasses.replace(environment.plan, row_invariant=environment.plan.precision.compute != "float32")
    options = {**_ROUNDED, **environment.compiler_options}
    return dataclasses.replace(environment, plan=plan, compiler_options=options)


class RepeatedDraws:
    """Draws as an `EngineSampler` does, by the distribution of the trainer's program for batches like `abstract`.

    After a draw, `keys` are those of the batch's tokens, int32 [rows, length] where it has its targets; `passes` is the
    number of forward passes since `load`, one over a part of the microbatches counting as that part, and `redrawn` that
    of the tokens which the engine had to draw again, both of all processes.
    """

    def __init__(self, sampler: EngineSampler, step: SplitStep, abstract: RolloutBatch) -> None:
        self._sampler, self._rows = sampler, local_rows(abstract)
        self._shape = len(self._rows), abstract.input_ids.shape[1]
        self._abstract, self._step = unrated(abstract), step
        #: This process's rows of each microbatch.
        self._places = step.microbatches.places(self._rows)
        self._exchange = Exchange("exact")
        self._weights: tuple[Any, Any, Any] = ({}, {}, 0)
        #: All of this process's rows, and their log-probabilities by the last passes.
        self._drawn: list[_Row] = []
        self._logprobs = np.zeros(self._shape, np.float32)
        self.keys: Any = np.zeros(self._shape, np.int32)
        self.passes, self.redrawn = 0.0, 0

    def load(self, params: Any, state: Any, step: int) -> None:
        """Begins a batch: takes the sampler's parameters, and the updates before the one that trains on the draws."""
        self._weights = params, state, np.int32(step)
        self._drawn, self.passes, self.redrawn = [], 0.0, 0

    def draw(
        self, prompts: Sequence[tuple[int, ...]], new_tokens: Sequence[int], stops: tuple[int, ...],
        seeds: Sequence[int], *, places: Sequence[int],
    ) -> list[Drawn]:  # fmt: skip
        """Returns a completion of each prompt, of the trainer's distribution.

        `places` are those of the prompts among this process's rows: all of them first, then those that try another
        prompt, whose microbatches alone are computed again. In a gang all processes call at the same point of their
        programs, with whatever places they have.
        """
        new = [_Row(*row) for row in zip(prompts, seeds, new_tokens, strict=True)]
        if not self._drawn:
            self._drawn = list(new)
        for place, row in zip(places, new, strict=True):
            self._drawn[place] = row
        rows, logprobs = self._drawn, self._logprobs
        redrawn, wrong = 0, list(new)
        touched = [index for index, own in enumerate(self._places) if not {*own.tolist()}.isdisjoint(places)]
        changed = set().union(*self._exchange.all(touched))
        while changed:
            redrawn += self._complete([row for row in wrong if not row.is_complete(stops)], stops)
            shown = self._repeat(rows, changed)
            self.passes += len(changed) / len(self._places)
            wrong, mine = [], set()
            for index, (values, choices) in shown.items():
                part = self._places[index]
                logprobs[part] = values
                corrected = [rows[at] for at, own in zip(part, choices, strict=True) if rows[at].correct(own)]
                wrong += corrected
                mine |= {index} if corrected else set()
            changed = set().union(*self._exchange.all(sorted(mine)))
        self.redrawn += sum(self._exchange.all(redrawn))
        return [rows[place].drawn(logprobs[place], stops) for place in places]

    def _complete(self, rows: Sequence["_Row"], stops: tuple[int, ...]) -> int:
        """Has the engine continue rows to their ends, each with a seed of its own for each time it is continued.

        Returns how many tokens were drawn again.
        """
        if not rows:
            return 0
        again = 0
        seeds = [stream_key(row.seed, row.times) if row.times else row.seed for row in rows]
        limits = [row.limit - len(row.ids) for row in rows]
        drawn = self._sampler.draw([(*row.prompt, *row.ids) for row in rows], limits, stops, seeds, logprobs=False)
        for row, seed, more in zip(rows, seeds, drawn, strict=True):
            again += len(more.ids) if row.times else 0
            row.times += 1
            row.ids += more.ids
            row.keys = np.concatenate([row.keys, random_numbers(seed, len(more.ids)).view(np.int32)])
        return again

    def _repeat(self, rows: Sequence["_Row"], indices: Iterable[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Returns the trainer's log-probabilities of tokens and what it draws in their places, by microbatch."""
        nothing = np.zeros(len(rows), np.float32)
        drawn = [Drawn(tuple(row.ids), (0.0,) * len(row.ids), "") for row in rows]
        laid = laid_out([row.prompt for row in rows], drawn, nothing, nothing + 1, self._shape[1])
        self.keys = np.zeros(self._shape, np.int32)
        for index, row in enumerate(rows):
            self.keys[index, row.written] = row.keys
        batch = global_batch(unrated(laid._replace(draw_keys=self.keys)), self._abstract, self._rows)
        shown = self._step.forward(*self._weights, batch, indices)
        first = self._rows.start // len(self._places)
        part = range(first, first + self._places.shape[1])
        return {index: (own_rows(x, part), own_rows(y, part)) for index, (x, y) in shown.items()}


@dataclasses.dataclass
class _Row:
    """A completion in the making: its tokens, the keys of their noise, and how often the engine continued it."""

    prompt: tuple[int, ...]
    seed: int
    limit: int
    ids: list[int] = dataclasses.field(default_factory=list)
    keys: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    times: int = 0

    @property
    def written(self) -> slice:
        """Where a batch's row has the completion's tokens as targets."""
        begin = len(self.prompt) - 1
        return slice(begin, begin + len(self.ids))

    def is_complete(self, stops: tuple[int, ...]) -> bool:
        return len(self.ids) == self.limit or (bool(self.ids) and self.ids[-1] in stops)

    def correct(self, choices: np.ndarray) -> bool:
        """Cuts the row after its first token that the trainer draws otherwise, which becomes that one."""
        mine = choices[self.written]
        differs = np.flatnonzero(mine != np.asarray(self.ids))
        if not len(differs):
            return False
        at = int(differs[0])
        self.ids, self.keys = [*self.ids[:at], int(mine[at])], self.keys[: at + 1]
        return True

    def drawn(self, logprobs: np.ndarray, stops: tuple[int, ...]) -> Drawn:
        mine = tuple(float(x) for x in logprobs[self.written])
        return Drawn(tuple(self.ids), mine, "stop" if self.ids[-1] in stops else "length")
