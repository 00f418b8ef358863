"""Decoding one token at a time: a character whose bytes span tokens appears once it is whole."""

import codecs
from collections.abc import Iterable

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class StreamDecoder:
    """Turns a stream of ids into texts that concatenate to `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that became certain with `ids`; possibly empty."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """Returns what an incomplete last character decodes to, and starts afresh."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest
