"""Who is guessed for in a step, and by how many tokens: plain Python over the host's tokens."""

import collections
import weakref

from kanawa_runtime.serve.engine.sequence import Sequence
from kanawa_runtime.serve.speculation.ngram import NgramIndex


class Speculator:
    """Guesses `count` tokens a step for each sequence, by looking them up or leaving them to a draft model."""

    def __init__(self, count: int, least: int, most: int, *, has_draft: bool) -> None:
        self.count = count
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        #: How often the guess at each place was right.
        self.accepted_at = collections.Counter[int]()
        self._least, self._most, self._has_draft = least, most, has_draft
        self._indices: weakref.WeakKeyDictionary[Sequence, NgramIndex] = weakref.WeakKeyDictionary()

    def guess(self, sequence: Sequence, most: int) -> list[int]:
        """Returns what may follow a sequence, at most so many tokens; zeros where a draft model is to say."""
        count = min(self.count, most)
        if self._has_draft or count < 1:
            return [0] * count
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = NgramIndex(self._least, self._most)
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
