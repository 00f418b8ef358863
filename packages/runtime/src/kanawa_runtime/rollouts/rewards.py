"""What a reward function gets, and two rewards that can be verified.

A reward is any function Rollout -> number, registered under `kanawa.rewards` or named as `module:function`. Nothing is
differentiated: it may run a program, or call a server.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """What the policy wrote after a prompt; `answer_ids` are the data's targets there.

    Texts are what the data's tokenizer makes of the ids, and "" without one. `finish_reason` is "stop" where the policy
    ended by itself, then its stop token is the last of `completion_ids`, and "length" where it was cut off. `record`
    holds the columns of the data's record that the prompt was made of: unit tests, a category, a difficulty.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    finish_reason: str
    prompt: str = ""
    completion: str = ""
    answer: str = ""
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: What an interaction made of its turns; None without one.
    episode: Any = None


def exact_match(rollout: Rollout) -> float:
    """`exact-match`: 1 where the completion is the answer, by text without outer blanks, else by ids; 0 elsewhere."""
    if rollout.answer:
        return float(rollout.completion.strip() == rollout.answer.strip())
    return float(rollout.completion_ids == rollout.answer_ids)


def matching_tokens(rollout: Rollout) -> float:
    """`matching-tokens`: the share of the answer's tokens that the completion has at the same places."""
    pairs = zip(rollout.completion_ids, rollout.answer_ids, strict=False)
    return sum(mine == wanted for mine, wanted in pairs) / max(len(rollout.answer_ids), 1)
