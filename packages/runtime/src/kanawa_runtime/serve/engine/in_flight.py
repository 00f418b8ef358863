"""Steps that were sent to the device and are not read yet."""

import collections
import dataclasses
from collections.abc import Sequence as SequenceOf
from typing import Any

import jax

from kanawa_runtime.serve.engine.scheduler import Chunk
from kanawa_runtime.serve.engine.sequence import Sequence


@dataclasses.dataclass(frozen=True)
class Sent:
    """Results on their way: `rows` are the sequences, each with the number of its tokens."""

    rows: list[tuple[Sequence, int]]
    ids: jax.Array
    details: jax.Array | None
    #: Details of the tokens of chunks whose prompt's log-probabilities are wanted.
    prompt_details: jax.Array | None = None
    chunks: SequenceOf[Chunk] = ()
    #: How many tokens were guessed for each row, where the step verified guesses.
    guessed: list[int] | None = None
    #: Tokens that each row gains at most.
    steps: int = 1

    def __post_init__(self) -> None:
        for array in (self.ids, self.details, self.prompt_details):
            if array is not None:
                array.copy_to_host_async()

    @property
    def is_ready(self) -> bool:
        """Whether it is computed."""
        ids: Any = self.ids
        return bool(ids.is_ready())

    @property
    def kind(self) -> tuple[Any, ...]:
        """What its time depends on for the most part."""
        return (len(self.chunks) > 0, self.ids.shape, self.steps, self.details is None, self.prompt_details is None)


@dataclasses.dataclass
class Step:
    """A step whose results are on their way, those unread; `decoded` tokens of a row if it did nothing else."""

    kind: tuple[Any, ...]
    unread: collections.deque[Sent]
    decoded: int | None

    @classmethod
    def of(cls, sent: list[Sent]) -> "Step":
        """Returns a step that was just sent."""
        alone = len(sent) == 1 and not sent[0].chunks
        return cls(tuple(part.kind for part in sent), collections.deque(sent), sent[0].steps if alone else None)

    def has_ended(self) -> bool:
        """Returns whether all of it is computed."""
        return not self.unread or self.unread[-1].is_ready
