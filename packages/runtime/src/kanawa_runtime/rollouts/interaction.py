"""Rollouts of several turns: what answers the policy between them, and how a whole episode is drawn.

An `Interaction` fills the slot `rollouts.interaction`: a game, a user, tools that the policy calls. What it writes is
in the row, so that later tokens see it, and weighs nothing: only what the policy drew is trained on.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kanawa.config import Configurable, Size, public_name
from kanawa.contracts.data import Tokenizer

from kanawa_runtime.data.permutation import stream_key
from kanawa_runtime.rollouts.prompts import Asked
from kanawa_runtime.rollouts.sampler import Drawn, RolloutError

#: Draws a completion of each prompt, of at most so many tokens, by its seed.
DrawTurn = Callable[[Sequence[tuple[int, ...]], Sequence[int], Sequence[int]], list[Drawn]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What the policy wrote in turn `number`, from 0, a stop token included; `text` is "" without a tokenizer."""

    number: int
    ids: tuple[int, ...]
    text: str


class Interaction(Configurable):
    """Answers the policy between its turns. One object serves a run; what belongs to a rollout is in its episode.

    It hears of every turn, also of one that was cut off because the row is full.

    Answers must depend on the question and the turns alone: a resumed run and other numbers of processes repeat them.
    """

    class Config(Configurable.Config):
        max_turns: Size = 8

    def prepare(self, tokenizer: Tokenizer | None) -> None:
        """Called once, before any episode, with the tokenizer of the data."""

    def close(self) -> None:
        """Called when the run ends."""

    @abc.abstractmethod
    def begin(self, asked: Asked) -> Any:
        """Returns a new episode, any object; rewards find it in `Rollout.episode`. `asked.record` has the columns."""

    @abc.abstractmethod
    def reply(self, episode: Any, turn: Turn) -> str | Sequence[int] | None:
        """Returns what stands after a turn, as text or ids, with the marks of the next turn; None ends the episode."""


class _Episode:
    """A rollout under way: all tokens after its prompt, with their log-probabilities, and who wrote them."""

    def __init__(self, asked: Asked, state: Any) -> None:
        self.asked, self.state = asked, state
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.mask: list[bool] = []
        self.reason = "stop"
        #: How much the policy has written, in tokens: what the interaction wrote last is no part of a rollout.
        self.end = 0

    def add(self, ids: Sequence[int], logprobs: Sequence[float], *, drawn: bool) -> None:
        """Appends tokens."""
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [drawn] * len(ids)
        self.end = len(self.ids) if drawn else self.end

    def drawn(self) -> Drawn:
        """Returns the rollout, which ends with the policy's last token."""
        end = self.end
        return Drawn(
            tuple(self.ids[:end]), tuple(self.logprobs[:end]), self.reason, tuple(self.mask[:end]), self.state
        )  # fmt: skip


def played(
    interaction: Interaction, asked: Sequence[Asked], seeds: Sequence[int], draw: DrawTurn, new_tokens: int,
    tokenizer: Tokenizer | None,
) -> list[Drawn]:  # fmt: skip
    """Returns an episode of each question, of at most `new_tokens` tokens, answers included.

    The turns of all episodes are drawn together, one after the other; a turn's seed is made of its episode's and its
    number. Raises RolloutError for what an interaction raises, and for answers that are no tokens.
    """
    episodes = [_Episode(one, _called(interaction.begin, one)) for one in asked]
    open_ones = list(range(len(episodes)))
    for number in range(interaction.config.max_turns):
        prompts = [(*episodes[i].asked.prompt, *episodes[i].ids) for i in open_ones]
        limits = [new_tokens - len(episodes[i].ids) for i in open_ones]
        turns = draw(prompts, limits, [stream_key(seeds[i], number) if number else seeds[i] for i in open_ones])
        still_open = []
        for i, turn in zip(open_ones, turns, strict=True):
            episode = episodes[i]
            episode.add(turn.ids, turn.logprobs, drawn=True)
            text = "" if tokenizer is None else tokenizer.decode([t for t in turn.ids if t < tokenizer.vocab_size])
            reply = _called(interaction.reply, episode.state, Turn(number=number, ids=turn.ids, text=text))
            if reply is None:
                episode.reason = turn.finish_reason
                continue
            ids = _ids(reply, tokenizer, interaction)
            if len(episode.ids) + len(ids) >= new_tokens:
                # There is no room for another turn.
                episode.reason = "length"
                continue
            episode.add(ids, [0.0] * len(ids), drawn=False)
            still_open.append(i)
        open_ones = still_open
        if not open_ones:
            break
    for i in open_ones:
        episodes[i].reason = "length"
    return [episode.drawn() for episode in episodes]


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        message = f"rollouts.interaction: {function.__qualname__} raised {type(error).__name__}: {error}"
        raise RolloutError(message) from error


def _ids(reply: Any, tokenizer: Tokenizer | None, interaction: Interaction) -> list[int]:
    if isinstance(reply, str):
        if tokenizer is None:
            message = (
                f"rollouts.interaction: {public_name(type(interaction))} replied a text, and the data have no "
                "tokenizer; reply ids"
            )
            raise RolloutError(message)
        return [int(token) for token in tokenizer.encode(reply)]
    return [int(token) for token in reply]
