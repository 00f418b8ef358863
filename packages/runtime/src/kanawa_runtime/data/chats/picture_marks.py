"""Conversations with pictures as a model's template writes them, and their ids: each picture is a run of tokens."""

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from kanawa.contracts import PictureTokens
from kanawa.errors import UsageError

from kanawa_runtime.data.chats.template import ChatTemplate, turns
from kanawa_runtime.data.chats.template_process import TemplateError
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

#: A part of a message's content that is a picture; all others are texts.
PICTURE: Mapping[str, Any] = {"type": "image"}
_PROBE = "Kanawa"


class PictureMarks:
    """Where pictures are in a model's texts, by its template and tokenizer.

    A template of many models takes contents as lists of parts, and writes a mark for each picture. For others the mark
    stands in the text where the picture was.
    """

    def __init__(self, tokens: PictureTokens, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.tokens, self._template = tokens, template
        names = tokenizer.special_names
        mark = names.get(tokens.token_id if tokens.mark_id is None else tokens.mark_id)
        #: Whether the tokenizer makes the picture's token of its name; otherwise a text of chance is cut out.
        self._named = mark is not None
        self.mark = mark or f"\ue000{secrets.token_hex(8)}\ue001"
        unnamed = [part for part in tokens.written if isinstance(part, int) and part not in names]
        if unnamed:
            message = f"the tokenizer has no names for {unnamed}, which the model's texts have around a picture"
            raise UsageError(message)
        parts = [part if isinstance(part, str) else names[part] for part in tokens.written]
        self._written = "".join(parts) if parts and self._named else self.mark

    @functools.cached_property
    def _takes(self) -> tuple[bool, bool]:
        """Whether the template takes contents as parts, and as texts."""
        parts = [dict(PICTURE), {"type": "text", "text": _PROBE}]
        as_parts, as_text = self._probed(parts), self._probed(_PROBE)
        return as_parts.count(self.mark) == 1 and _PROBE in as_parts and "'type'" not in as_parts, _PROBE in as_text

    def _probed(self, content: Any) -> str:
        if not self._template.own:
            return _PROBE if isinstance(content, str) else ""
        try:
            return self._template.render(turns([{"role": "user", "content": content}], add_generation_prompt=True))
        except TemplateError:
            return ""

    def for_template(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns messages with contents as the template takes them; lists have parts of type image and text."""
        as_parts, as_text = self._takes
        made = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list) and not as_parts:
                content = "".join(self.mark if part == PICTURE else part["text"] for part in content)
            elif isinstance(content, str) and as_parts and not as_text:
                content = [{"type": "text", "text": content}]
            made.append({**message, "content": content})
        return made

    def encode(self, text: str, encode: Callable[[str], np.ndarray]) -> np.ndarray:
        """Returns the ids of a text with marks, each of which is all tokens of a picture."""
        token, count = self.tokens.token_id, self.tokens.num_tokens
        if self._named:
            ids = encode(text.replace(self.mark, self._written))
        else:
            between = [encode(piece) if piece else np.zeros(0, np.int32) for piece in text.split(self.mark)]
            marked = [part for piece in between for part in (np.asarray([token], np.int32), piece)]
            ids = np.concatenate(marked[1:])
        ids = np.asarray(ids, np.int32)
        return np.repeat(ids, np.where(ids == token, count, 1))

    def check_count(self, ids: Sequence[int], count: int) -> None:
        """Raises UsageError where ids don't have the tokens of so many pictures."""
        found = int(np.sum(np.asarray(ids) == self.tokens.token_id))
        if found == count * self.tokens.num_tokens:
            return
        places = found // self.tokens.num_tokens
        message = f"there are {count} pictures, and {places} places for them in what the model's template writes"
        if places > count and self._named:
            message += f": {self.mark!r} in a text stands for a picture, leave it out"
        raise UsageError(message)
