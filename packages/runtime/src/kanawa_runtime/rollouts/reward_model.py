"""`rollouts.reward_model`: what a trained reward model says of rollouts is one of their rewards."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from kanawa.contracts import CausalLM, Sequences
from kanawa.errors import UsageError
from kanawa.module import functional

from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.tokenizers.load import tokenizer_of
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.rollouts.handover import Handover
from kanawa_runtime.rollouts.rewards import Rollout
from kanawa_runtime.runs.open_run import open_run

#: Rollouts that are read at once, and the shortest rows: lengths are powers of two, so that few programs are compiled.
_ROWS, _SHORTEST = 8, 32


class RewardModel:
    """The reward model of a run, `--modify reward-model`, or of a folder with one: a number for each rollout.

    It reads prompt and completion as it read them in training: after an answer of a chat that ended by itself comes
    what its template writes there. In a gang all processes build it, and each then rates by itself.
    """

    def __init__(self, path: str, tokenizer: Any) -> None:
        """Reads the newest checkpoint; raises UsageError for another kind of model, or another vocabulary."""
        opened = open_run(path, serves=True)
        model = opened.trainer.model
        if not isinstance(model, CausalLM):
            raise _not_one(path, type(model).__qualname__)
        own = tokenizer_of(opened)
        if isinstance(tokenizer, Tokenizer) and own is not None and list(tokenizer.tokens) != list(own.tokens):
            message = (
                f"rollouts.reward_model: {path} was trained on another vocabulary than the policy's, so that ids mean "
                "other texts there; train it from a folder with the policy's tokenizer"
            )
            raise UsageError(message)
        handover = Handover(model, opened.environment)
        self._environment = handover.environment
        self._params, self._state = handover.params(opened.params), handover.state(opened.state)
        source = opened.trainer.source
        self._tail = source.answer_tail if isinstance(source, ChatSource) else ()

        def rewards(params: Any, state: Any, ids: Any, positions: Any, segments: Any, last: Any) -> jax.Array:
            sequences = Sequences(positions=positions, segment_ids=segments)
            (logits, _), _ = functional(model, "decode")(params, state, ids, sequences, None, last)
            if logits.shape[-1] != 1:
                raise _not_one(path, f"it gives {logits.shape[-1]} numbers a token")
            scores: jax.Array = logits[..., 0]
            return scores

        self._rewards = jax.jit(rewards)

    def rate(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """Returns the reward of each rollout, float64: the head's number at its last token."""
        found = [
            self._rated([self._ids(one) for one in rollouts[at : at + _ROWS]]) for at in range(0, len(rollouts), _ROWS)
        ]
        return np.concatenate(found) if found else np.zeros(0)

    def _ids(self, rollout: Rollout) -> tuple[int, ...]:
        is_chat = not isinstance(rollout.record.get("prompt", []), str)
        tail = self._tail if is_chat and rollout.finish_reason == "stop" else ()
        return (*rollout.prompt_ids, *rollout.completion_ids, *tail)

    def _rated(self, texts: list[tuple[int, ...]]) -> np.ndarray:
        length = max(_SHORTEST, 1 << (max(map(len, texts)) - 1).bit_length())
        ids, segments = np.zeros((_ROWS, length), np.int32), np.zeros((_ROWS, length), np.int32)
        last = np.zeros((_ROWS, 1), np.int32)
        for row, text in enumerate(texts):
            ids[row, : len(text)], segments[row, : len(text)], last[row] = text, 1, len(text) - 1
        positions = np.where(segments > 0, np.arange(length, dtype=np.int32), 0)
        with self._environment.active():
            values = self._rewards(self._params, self._state, ids, positions, segments, last)
        return np.asarray(values, np.float64)[: len(texts), 0]


def _not_one(path: str, found: str) -> UsageError:
    return UsageError(
        f"rollouts.reward_model: {path} holds no reward model ({found}); train one: "
        "kanawa train FOLDER --modify reward-model --data pairs.jsonl --run RUN"
    )
