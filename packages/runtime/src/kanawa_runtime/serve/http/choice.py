"""One choice of a response while it grows, and the log-probabilities of its tokens as clients read them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
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


#: JSON has no minus infinity; OpenAI writes this for tokens that can't be drawn.
_MIN_LOGPROB = -9999.0


@dataclasses.dataclass(frozen=True)
class LogprobWriter:
    """Writes tokens as text, or as "token_id:7" where a request wants that."""

    tokenizer: Tokenizer
    special: Mapping[int, str]
    as_ids: bool = False

    def token(self, token_id: int) -> str:
        """Returns a token's own text; invalid bytes become U+FFFD."""
        if self.as_ids:
            return f"token_id:{token_id}"
        return self.special.get(token_id) or self._bytes(token_id).decode("utf-8", "replace")

    def completion(self, piece: Piece, number: int, *, at: int = 0) -> dict[str, Any]:
        """Returns OpenAI's log-probabilities of a completion's tokens; `at` is where its text begins."""
        return {
            "tokens": [self.token(i) for i in piece.token_ids],
            "token_logprobs": [_number(entry.logprob) for entry in piece.logprobs],
            "top_logprobs": [self._top(entry, number) for entry in piece.logprobs],
            "text_offset": [at + offset for offset in piece.offsets],
        }

    def echoed(
        self, ids: Sequence[int], entries: Sequence[TokenLogprobs | None] | None, number: int
    ) -> tuple[dict[str, Any], str]:
        """Returns the log-probabilities of a prompt, and its text; the first token has none."""
        offsets, length = [], 0
        texts = [self._bytes(i).decode("utf-8", "replace") for i in ids]
        for text in texts:
            offsets.append(length)
            length += len(text)
        known = entries or [None] * len(ids)
        logprobs = {
            "tokens": [self.token(i) for i in ids],
            "token_logprobs": [None if entry is None else _number(entry.logprob) for entry in known],
            "top_logprobs": [None if entry is None else self._top(entry, number) for entry in known],
            "text_offset": offsets,
        }
        return logprobs, self.tokenizer.decode([i for i in ids if i < self.tokenizer.vocab_size])

    def chat(self, piece: Piece, number: int) -> dict[str, Any]:
        """Returns OpenAI's log-probabilities of a message's tokens."""
        return {
            "content": [
                self._chat_token(token_id, entry.logprob)
                | {"top_logprobs": [self._chat_token(i, logprob) for i, logprob in entry.top[:number]]}
                for token_id, entry in zip(piece.token_ids, piece.logprobs, strict=False)
            ],
            "refusal": None,
        }

    def prompt(
        self, ids: Sequence[int], entries: Sequence[TokenLogprobs | None] | None
    ) -> list[dict[str, Any] | None] | None:
        """Returns vLLM's `prompt_logprobs`: by token id, for each of the prompt's tokens; None without any."""
        if entries is None:
            return None
        return [
            None
            if entry is None
            else {
                str(i): {"logprob": _number(logprob), "rank": rank, "decoded_token": self.token(i)}
                for rank, (i, logprob) in _ranked(token_id, entry)
            }
            for token_id, entry in zip(ids, entries, strict=False)
        ]

    def _top(self, entry: TokenLogprobs, number: int) -> dict[str, float] | None:
        if not number:
            return None
        top: dict[str, float] = {}
        for token_id, logprob in entry.top[:number]:
            # Several ids may be written alike, broken bytes for one; the likeliest one counts.
            top.setdefault(self.token(token_id), _number(logprob))
        return top

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.token(token_id),
            "logprob": _number(logprob),
            "bytes": list(self._bytes(token_id) or self.special.get(token_id, "").encode()),
        }

    def _bytes(self, token_id: int) -> bytes:
        tokens = self.tokenizer.tokens
        return tokens[token_id] if token_id < len(tokens) else b""


def _ranked(token_id: int, entry: TokenLogprobs) -> list[tuple[int, tuple[int, float]]]:
    """Returns (rank, (id, log-probability)) of the likeliest tokens, and of the token itself first."""
    others = [(rank, pair) for rank, pair in enumerate(entry.top, 1) if pair[0] != token_id]
    return [(entry.rank, (token_id, entry.logprob)), *others]


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _MIN_LOGPROB
