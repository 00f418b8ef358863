"""What models of speech offer to those who transcribe by them: sound to ids, and rules for what may be written."""

import abc
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

from kanawa.config import REQUIRED, Size
from kanawa.contracts.roles import Model


class Hearing(NamedTuple):
    """The sound that a model takes: samples a second, how many make its longest row, and how many ids it writes.

    `row_samples` None: rows of any length. Ids are those of a row, `prompt_ids` of them at most read before, which end
    with `start_ids`; 0 for a model that takes no prompt.
    """

    sample_rate: int
    row_samples: int | None = None
    prompt_ids: int = 0
    written_ids: int | None = None
    start_ids: tuple[int, ...] = ()


class Writing(NamedTuple):
    """How transcripts of B rows of sound are written; V is the vocabulary, P the model's `Hearing.prompt_ids`.

    Attributes:
        prompt_ids: what the model reads first, padded at the end; -1 stands for the likeliest of `choices`.
        prompt_lengths: how many of them count.
        choices: ids that may take the place of a -1.
        allowed: ids that may be written; `allowed_first`: those that a transcript may begin with.
        first_time: the first id of a time, from which on all ids are times; -1 of rows that are written without.
        last_begin: how many times after `first_time` a transcript may begin.
        temperature: 0 takes the likeliest id. `seed` is of the draws.
    """

    prompt_ids: Int[Array, "B P"]
    prompt_lengths: Int[Array, " B"]
    choices: Bool[Array, " V"]
    allowed: Bool[Array, " V"]
    allowed_first: Bool[Array, " V"]
    first_time: Int[Array, " B"]
    last_begin: Int[Array, ""]
    temperature: Float[Array, " B"]
    seed: UInt32[Array, " B"]


class Transcripts(NamedTuple):
    """The ids that were written for B rows, -1 after each row's last, the end left out.

    Attributes:
        ids: int32 [B, most].
        prompt_ids: the prompt with its choices; None of a model that reads none.
        log_probs: fp32 [B], the sum over ids and the end, before any temperature; None where a model has no such sum.
    """

    ids: Int[Array, "B most"]
    prompt_ids: Int[Array, "B P"] | None = None
    log_probs: Float[Array, " B"] | None = None


class Transcribes(Model):
    """A model of speech that writes what it hears."""

    class Config(Model.Config):
        vocab_size: Size = REQUIRED

    @classmethod
    @abc.abstractmethod
    def hearing_of(cls, cfg: Any) -> Hearing:
        """Returns what a model with this config takes."""

    @abc.abstractmethod
    def transcribe(
        self, audio: Float[Array, "B N"], audio_lengths: Int[Array, " B"], most: int, writing: Writing | None = None
    ) -> Transcripts:
        """Returns what is said in sound from -1 to 1, at most `most` ids a row; None: as the model writes by itself."""
