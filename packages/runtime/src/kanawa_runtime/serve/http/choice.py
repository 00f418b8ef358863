"""One choice of a response while it grows: its text, its tokens, and why it ended."""

import dataclasses

from kanawa_runtime.serve.engine.request import Output, Request, TokenLogprobs
from kanawa_runtime.serve.growing_text import GrowingText


@dataclasses.dataclass
class Piece:
    """What a choice gained since the last piece."""

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    #: Where in the choice's text each token begins, as far as the text was certain by then.
    offsets: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None

    def __iadd__(self, later: "Piece") -> "Piece":
        """Appends the next piece."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.offsets += later.offsets
        self.finish_reason = later.finish_reason
        return self


class Choice:
    """The engine's `request` and its answer; `prompt` is the prompt's place in the HTTP request, `index` its own."""

    def __init__(self, request: Request, text: GrowingText, *, index: int, prompt: int) -> None:
        self.request = request
        self.index = index
        self.prompt = prompt
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.error: str | None = None
        self.is_refused = False
        self.cached_tokens = 0
        self.num_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.submitted = self.scheduled = self.first = self.last = 0.0
        self._text = text
        self._length = 0
        self._piece = Piece()

    def take(self, output: Output) -> None:
        """Adds an output of the engine; outputs after the end are ignored."""
        if self.finish_reason is not None:
            return
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.scheduled = output.scheduled_at or self.scheduled
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for place, token_id in enumerate(output.token_ids):
            self.num_tokens += 1
            self._piece.token_ids.append(token_id)
            self._piece.offsets.append(self._length)
            if output.logprobs is not None:
                self._piece.logprobs.append(output.logprobs[place])
            self._add(self._text.push(token_id))
            if self._text.stop is not None:
                self.finish_reason, self.stop_reason = "stop", self._text.stop
                return
        if output.finish_reason is not None:
            self._add(self._text.finish())
            self.finish_reason, self.error = output.finish_reason, output.error
            self.is_refused = output.is_refused
            if self._text.stop is not None:
                self.finish_reason, self.stop_reason = "stop", self._text.stop
            elif output.stop_token_id is not None:
                # It was drawn like any other token, and counts as one.
                self.num_tokens += 1
                if output.stop_token_id in self.request.sampling.stop_token_ids:
                    self.stop_reason = output.stop_token_id

    def end(self, reason: str) -> None:
        """Ends the choice without the engine."""
        if self.finish_reason is None:
            self._add(self._text.finish())
            self.finish_reason = reason

    def piece(self) -> Piece:
        """Returns what is new since the last call."""
        piece, self._piece = self._piece, Piece()
        piece.finish_reason = self.finish_reason
        return piece

    def _add(self, text: str) -> None:
        self._piece.text += text
        self._length += len(text)
