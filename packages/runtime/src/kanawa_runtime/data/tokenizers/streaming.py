"""Decoding one token at a time: a character whose bytes span tokens appears once it is whole."""

from collections.abc import Iterable

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

#: What an incomplete character decodes to.
_INCOMPLETE = "\ufffd"


class StreamDecoder:
    """Turns a stream of ids into texts that concatenate to what `tokenizer.decode` makes of all ids after `before`.

    Some tokenizers write a token differently at the start of a text, so each piece is decoded after the one before
    it, and only what is new is given out.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.known
        # A prompt given as ids may hold padding of the model's vocabulary, which stands for nothing.
        self._ids = [i for i in before if i < len(known) and known[i]]
        #: The window: ids up to `_read` are given out; those from `_start` on are decoded along.
        self._start, self._read = 0, len(self._ids)

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that became certain with `ids`; possibly empty."""
        self._ids += ids
        text, given = self._texts()
        if text.endswith(_INCOMPLETE):
            return ""
        return self._advance(text, given)

    def finish(self) -> str:
        """Returns what an incomplete last character decodes to."""
        return self._advance(*self._texts())

    def _texts(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        return decode(self._ids[self._start :]), decode(self._ids[self._start : self._read])

    def _advance(self, text: str, given: str) -> str:
        self._start, self._read = self._read, len(self._ids)
        return text[len(given) :]
