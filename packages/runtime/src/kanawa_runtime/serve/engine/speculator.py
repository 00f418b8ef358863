"""Guesses of the next tokens: those after an earlier occurrence of the last ones (prompt lookup), or a draft's."""

import collections
import weakref
from collections.abc import Sequence as SequenceOf

from kanawa_runtime.serve.engine.sequence import Sequence


class NgramIndex:
    """The last end of each run of `smallest` to `largest` tokens in a sequence; grows in constant time a token."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._smallest, self._largest = smallest, largest
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, tokens: SequenceOf[int], count: int) -> list[int]:
        """Returns up to `count` tokens that followed the longest known run that the sequence ends with; none without.

        `tokens` are those of the call before and more.
        """
        # All but the last position: a run must not match itself.
        for end in range(self._indexed + 1, len(tokens)):
            for size in range(self._smallest, min(self._largest, end) + 1):
                self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size in range(min(self._largest, len(tokens) - 1), self._smallest - 1, -1):
            found = self._ends.get(tuple(tokens[len(tokens) - size :]))
            if found is not None:
                return list(tokens[found : found + count])
        return []


class Speculator:
    """Guesses `count` tokens a step for each sequence, by looking them up or leaving them to a draft model."""

    def __init__(self, count: int, smallest: int, largest: int, *, has_draft: bool) -> None:
        self.count = count
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        #: How often the guess at each place was right.
        self.accepted_at = collections.Counter[int]()
        self._smallest, self._largest, self._has_draft = smallest, largest, has_draft
        self._indices: weakref.WeakKeyDictionary[Sequence, NgramIndex] = weakref.WeakKeyDictionary()

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        """Returns guesses of the tokens that follow a sequence, at most `most`; zeros where a draft model guesses."""
        count = min(self.count, most)
        if self._has_draft or count < 1:
            return [0] * count
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = NgramIndex(self._smallest, self._largest)
        return index.guess(sequence.tokens, count)

    def count_accepted(self, guessed: int, accepted: int) -> None:
        """Counts one sequence's step."""
        self.drafts += 1
        self.draft_tokens += guessed
        self.accepted_tokens += accepted
        self.accepted_at.update(range(accepted))

    def stats(self) -> dict[str, float]:
        """Returns the counters by vLLM's names."""
        return {
            "spec_decode_num_drafts": self.drafts,
            "spec_decode_num_draft_tokens": self.draft_tokens,
            "spec_decode_num_accepted_tokens": self.accepted_tokens,
        }
