"""A completion's text as its tokens come: whole characters only, and nothing that may belong to a stop string."""

import codecs
from collections.abc import Mapping, Sequence

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.http.stop_strings import StopStrings


class GrowingText:
    """Takes one id at a time and returns the text that is certain.

    The cost of an id is that of its bytes, however long the text and however long its bytes make no character: decoding
    a window again with every token would let a model that writes broken UTF-8 take ever more time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stops: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        special: Mapping[int, str] | None = None,
    ) -> None:
        """Starts after a prompt; `special` are texts for special ids, which have none otherwise."""
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stops, include=include_stop)
        self._special = special or {}
        self._min_tokens = min_tokens
        self._starts = not _has_text(tokenizer, prompt_ids)
        self.num_tokens = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text; None while there is none."""
        return self._stops.hit

    def push(self, token_id: int) -> str:
        """Returns the text that became certain with a token; possibly empty."""
        self.num_tokens += 1
        text = self._bytes.decode(self._bytes_of(token_id))
        if self.num_tokens <= self._min_tokens:
            return text
        return self._stops.push(text)

    def finish(self) -> str:
        """Returns what is left: held back for a stop string, or an incomplete character as U+FFFD."""
        if self.stop is not None:
            return ""
        return self._stops.push(self._bytes.decode(b"", final=True)) + self._stops.finish()

    def _bytes_of(self, token_id: int) -> bytes:
        tokens = self._tokenizer.tokens
        if token_id in self._special:
            return self._special[token_id].encode()
        # Ids that only pad the model's vocabulary stand for nothing.
        data = tokens[token_id] if token_id < len(tokens) else b""
        if self._starts and data:
            self._starts = False
            data = self._at_start(token_id, data)
        return data

    def _at_start(self, token_id: int, data: bytes) -> bytes:
        """Returns a text's first token without the space that SentencePiece writes in front of every word."""
        alone = self._tokenizer.decode([token_id]).encode()
        return alone if data == b" " + alone else data


def _has_text(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Returns whether any of the ids stands for text; in almost every case one of the last does."""
    tokens = tokenizer.tokens
    return any(i < len(tokens) and tokens[i] for i in reversed(ids))
