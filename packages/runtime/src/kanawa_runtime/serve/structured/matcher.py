"""One structured output as it grows: which tokens may follow, and which were drawn."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from kanawa.errors import UsageError

if TYPE_CHECKING:
    import llguidance


class MatchError(UsageError):
    """A structured output that can't continue: its grammar exceeded its limits, or doesn't allow a token."""


@dataclasses.dataclass(eq=False)
class LibraryGrammar:
    """Follows one request through a grammar; implements `serve.engine.request.Grammar`."""

    matcher: "llguidance.LLMatcher"
    vocab_size: int

    def allowed(self) -> np.ndarray:
        """Returns which ids may follow, packed as int32 [ceil(vocab / 32)]; stop ids where the output may end.

        Raises MatchError where that takes more than the bounds on a step.
        """
        # A failed matcher would allow every stop token: half an output would pass for a whole one.
        self._check()
        bits = self.matcher.compute_bitmask()
        self._check()
        return np.frombuffer(bits, np.int32)[: -(-self.vocab_size // 32)]

    def accept(self, token_id: int) -> bool:
        """Takes a token; returns whether the output is complete, so that nothing but a stop token may follow.

        Raises MatchError for one that isn't allowed.
        """
        self.matcher.consume_token(token_id)
        self._check()
        return bool(self.matcher.is_stopped())

    def fork(self) -> "LibraryGrammar":
        """Returns an independent copy."""
        return LibraryGrammar(self.matcher.deep_copy(), self.vocab_size)

    def _check(self) -> None:
        if self.matcher.is_error():
            # What follows the first line is the library's state, for its authors.
            reason = self.matcher.get_error().partition("\n")[0]
            message = f"the structured output can't continue: {reason}"
            raise MatchError(message)
