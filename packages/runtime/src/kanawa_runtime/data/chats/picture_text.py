"""Texts to learn that have pictures: the model's template writes them as it is served, and answers stay marked."""

from collections.abc import Mapping, Sequence
from typing import Any

from kanawa.contracts import PictureTokens

from kanawa_runtime.data.chats.picture_marks import PICTURE, PictureMarks
from kanawa_runtime.data.chats.template import ChatTemplate
from kanawa_runtime.data.chats.template_process import MarkedText
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class PictureText:
    """`mark` stands in messages for a picture; the tokenizer has names for the mark and for what is written."""

    def __init__(self, tokens: PictureTokens, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._marks, names = PictureMarks(tokens, template, tokenizer), tokenizer.special_names
        self.mark = self._marks.mark
        written = [part if isinstance(part, str) else names[part] for part in tokens.written]
        self._written = "".join(written) or self.mark

    def for_template(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns messages of texts with marks as the template takes them, in parts where it does."""
        return self._marks.for_template([{**m, "content": self._parts(m["content"])} for m in messages])

    def _parts(self, text: str) -> str | list[dict[str, Any]]:
        if self.mark not in text:
            return text
        parts: list[dict[str, Any]] = []
        for place, piece in enumerate(text.split(self.mark)):
            parts += [dict(PICTURE)] if place else []
            parts += [{"type": "text", "text": piece}] if piece else []
        return parts

    def written_out(self, marked: MarkedText) -> MarkedText:
        """Returns a rendered text with what the model reads in place of each mark; ranges move along."""
        text, mark, longer = marked.text, self.mark, len(self._written) - len(self.mark)

        def moved(place: int) -> int:
            return place + longer * text.count(mark, 0, place)

        spans = tuple((moved(begin), moved(end)) for begin, end in marked.spans)
        return MarkedText(text.replace(mark, self._written), spans)
