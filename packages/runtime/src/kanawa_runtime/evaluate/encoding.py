"""Requests as token ids: contexts and continuations cut apart, windows over texts longer than the model.

Where a context ends and how long ones are cut follow lm-eval 0.4 (`lm_eval/api/model.py`), so that the same tokens are
scored.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.evaluate.task import TaskError

#: The tokens that a model takes whose length no file says, as lm-eval has it.
DEFAULT_LENGTH = 2048


class Scored(NamedTuple):
    """Ids of which the last `num_scored` are scored; the model reads all but the last."""

    ids: tuple[int, ...]
    num_scored: int


class RequestEncoder:
    """Encodes for a model of `max_length` tokens; counts in `truncated` the requests that were cut from the left."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.truncated = 0
        self._begin = tokenizer.special_names.get(tokenizer.bos_id, "")

    def text_ids(self, text: str) -> list[int]:
        """Returns a text's ids after what its tokenizer begins a text with, unless the text itself begins so."""
        ids: list[int] = self.tokenizer.encode(text).tolist()
        if self._begin and text.startswith(self._begin):
            return ids
        return [*self.tokenizer.prefix_ids, *ids]

    def pair(self, context: str, continuation: str, name: str) -> Scored:
        """Returns the ids of a continuation after its context, the context's oldest tokens cut off where it must be.

        Spaces at the context's end belong to the continuation, whose first word most tokenizers write with them. Raises
        TaskError, with the `name` of the document, for a continuation that has no tokens or more than the model takes.
        """
        if not context:
            before = [self.tokenizer.bos_id]
            after = self.tokenizer.encode(continuation).tolist()
            if after[:1] == before:
                after = after[1:]
        else:
            before = self.text_ids(context.rstrip())
            after = self.text_ids(context + continuation)[len(before) :]
            before = before or [self.tokenizer.bos_id]
        if not after:
            message = f"{name}: the continuation {continuation!r} has no token of its own after its context"
            raise TaskError(message)
        if len(after) > self.max_length:
            message = (
                f"{name}: the continuation {continuation[:60]!r}… has {len(after)} tokens, and the model takes "
                f"{self.max_length}; shorten it"
            )
            raise TaskError(message)
        return Scored(self._cut([*before, *after], self.max_length + 1), len(after))

    def whole(self, text: str) -> list[Scored]:
        """Returns windows that score each token of a text once, all but the first after as many as the model takes."""
        ids, most = self.text_ids(text), self.max_length
        windows = [Scored((self.tokenizer.bos_id, *ids[:most]), min(most, len(ids)))] if ids else []
        for start in range(most, len(ids), most):
            end = min(start + most, len(ids))
            windows.append(Scored(tuple(ids[end - most - 1 : end]), end - start))
        return windows

    def prompt(self, text: str, new_tokens: int, name: str) -> tuple[int, ...]:
        """Returns the ids to continue, the oldest cut off so that `new_tokens` more have room.

        Raises TaskError where so many have none.
        """
        room = self.max_length - new_tokens
        if room < 1:
            message = (
                f"{name}: answers of {new_tokens} tokens leave no room for a question, since the model takes "
                f"{self.max_length}; lower max_gen_toks"
            )
            raise TaskError(message)
        return self._cut(self.text_ids(text) or [self.tokenizer.bos_id], room)

    def _cut(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        self.truncated += len(ids) > most
        return tuple(ids[-most:])
