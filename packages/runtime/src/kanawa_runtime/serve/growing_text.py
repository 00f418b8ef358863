"""Texts to and from a model: a prompt's ids, and a completion's text as its tokens come, in whole characters."""

import codecs
import functools
from collections.abc import Iterable, Mapping, Sequence

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

#: U+2400 and on show the control characters, U+2421 delete. C1 controls have no pictures.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns a text's ids after those that its tokenizer begins a text with; an empty one begins a document.

    The text is tokenized as it is, a space at its end too, which most tokenizers write with the next word.
    """
    encoded: list[int] = tokenizer.encode(text).tolist()
    return [*tokenizer.prefix_ids, *encoded] if encoded else [tokenizer.bos_id]


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], ids: Iterable[int]) -> str:
    """Returns the text that new ids add to a prompt's."""
    growing = GrowingText(tokenizer, prompt)
    return "".join(map(growing.push, ids)) + growing.finish()


def visible(text: str) -> str:
    """Returns the text with control characters as pictures of them, line ends and tabs aside.

    What a model writes can't be trusted: on a terminal an escape could move the cursor, or worse.
    """
    return text.translate(_PICTURES)


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
        # Ids that only pad the model's vocabulary have no text.
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
    """Returns whether any of the ids has text; in almost every case one of the last does."""
    tokens = tokenizer.tokens
    return any(i < len(tokens) and tokens[i] for i in reversed(ids))


class StopStrings:
    """Passes text on until one of `stops` is complete in it.

    However the text is cut into pieces, what comes out joins to the same: the text before the stop string that is
    complete first (of several that end at the same character the longest), or after it with `include`. A character
    costs the same however long the stop strings are, and however much is held back (Knuth, Morris and Pratt).
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        #: How much of each stop string the text ends with.
        self._begun = [0] * len(stops)
        self._held = ""
        #: The stop string that ended the text, and what stood after it in the piece that completed it.
        self.hit: str | None = None
        self.rest = ""

    def push(self, text: str) -> str:
        """Returns the text that is certain by now; nothing once a stop string was hit."""
        if self.hit is not None:
            return ""
        whole = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            complete = self._complete_with(character)
            if complete is not None:
                self.hit, self._held, self.rest = complete, "", whole[end:]
                return whole[: end if self._include else end - len(complete)]
        held = max(self._begun, default=0)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def finish(self) -> str:
        """Returns what was held back: nothing follows that could complete it."""
        held, self._held = self._held, ""
        return held

    def _complete_with(self, character: str) -> str | None:
        """Takes a character; returns the longest stop string that it completes."""
        complete: str | None = None
        for index, stop in enumerate(self._stops):
            length = self._begun[index]
            while length and stop[length] != character:
                length = _fallbacks(stop)[length - 1]
            length += stop[length] == character
            self._begun[index] = length
            if length == len(stop):
                complete = max(complete or "", stop, key=len)
        return complete


@functools.lru_cache(maxsize=256)
def _fallbacks(stop: str) -> list[int]:
    """Returns for each beginning of `stop` the length of the longest shorter one that it ends with."""
    lengths, length = [0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = lengths[length - 1]
        length += stop[length] == character
        lengths.append(length)
    return lengths
