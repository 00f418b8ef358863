"""Conversations about pictures in JSON Lines: the model's template writes them, and the answers are learned."""

import base64
import binascii
import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from kanawa.config import Size
from kanawa.contracts import PictureTokens
from kanawa.errors import UsageError

from kanawa_runtime.data.chats.answers import Answers
from kanawa_runtime.data.chats.picture_text import PictureText
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.decode import PICTURES, PictureError, decoded
from kanawa_runtime.data.images.in_rows import PicturedText, PicturesInRows
from kanawa_runtime.data.media_files import MediaFiles
from kanawa_runtime.data.media_items import Item, Kind, Listing, item_bytes
from kanawa_runtime.data.records.addresses import is_address
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.formats import JSON_LINES, read_rows, record_name
from kanawa_runtime.data.records.listing import found_files
from kanawa_runtime.data.records.source import RecordError


class PictureChats(MediaFiles, PicturesInRows):
    """Rows of one conversation each: `messages` as in chats, whose content may have parts that are pictures.

    Such a part is {"type": "image", "path": …}, or {"type": "image_url", "image_url": {"url": …}}: a path relative to
    the file, or a data URL. Records of LLaVA's form have `image` (or `images`) and `conversations`, in which the
    text of the model's mark stands for each. A template that takes contents as parts gets them, and writes the mark
    itself; in the text of others it stands where the part was.
    """

    class Config(MediaFiles.Config, PicturesInRows.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("root", "tokenizer_file", "template_file", "max_pixels")

        sequence_length: Size = 1024
        most_pictures: Size = 1
        template_file: str | None = None
        answers: Answers = "all"
        #: More are refused before any is decoded.
        max_pixels: Size = 89_478_485

    @property
    def kind(self) -> Kind:
        """Conversations."""
        return Kind("conversation", PICTURES, "messages", "record", "messages", (), False, lambda _: "")

    def listed(self) -> Listing:
        """Returns the conversations of the files, each with its place."""
        cfg, items, problems = self.config, [], []
        for file in found_files(cfg.files, cfg.root):
            if not file.name.endswith(JSON_LINES):
                message = f"{file.address}: chats about pictures are read from {' or '.join(JSON_LINES)}; convert it"
                raise CorpusError(message)
            for number, fields, problem in read_rows(file.address):
                if problem and cfg.on_bad == "stop":
                    message = f"{record_name(file.address, number)}: {problem}"
                    raise CorpusError(message)
                if problem:
                    problems.append(f"{record_name(file.address, number)}: {problem}")
                else:
                    items.append(Item(record_name(file.name, number), json.dumps(fields), file.address))
        return Listing(items, problems)

    @property
    def content(self) -> Any:
        """The records, the tokenizer and the template."""
        return [super().content, self.tokenizer.digest, *self._chats.other_content]

    @functools.cached_property
    def _chats(self) -> ChatSource:
        cfg = self.config
        made = ChatSource.Config(
            records=RecordFiles.Config(files=cfg.files, root=cfg.root),
            tokenizer_file=cfg.tokenizer_file,
            template_file=cfg.template_file,
            answers=cfg.answers,
        )
        chats: ChatSource = made.build()
        return chats

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's own, with its template."""
        return self._chats.tokenizer

    @functools.cached_property
    def _text(self) -> PictureText:
        """How pictures are written; raises UsageError where the tokenizer lacks one of the model's tokens."""
        cfg, names = self.config, self.tokenizer.special_names
        ids = (cfg.image_token_id, cfg.mark_id, *cfg.written)
        for token in ids:
            if isinstance(token, int) and token not in names:
                message = (
                    f"the model writes token {token} for a picture, and {cfg.tokenizer_file} has no special token of "
                    f"this id; its special tokens are {', '.join(f'{i} {name}' for i, name in names.items()) or 'none'}"
                )
                raise UsageError(message)
        shape = (cfg.height, cfg.width, cfg.channels)
        tokens = PictureTokens(cfg.image_token_id, cfg.tokens_per_picture, shape, cfg.mark_id, tuple(cfg.written))
        return PictureText(tokens, self._chats.template, self.tokenizer)

    def pictured(self, number: int) -> PicturedText:
        """Returns a conversation; raises PictureError for one that can't be learned from."""
        item = self.split_items[number]
        found: list[str] = []
        try:
            example = self._chats.chat_example(_with_marks(json.loads(item.text), self._text.mark, found), self._text)
            pictures = [self._picture(where, item.address) for where in found]
        except RecordError as error:
            raise PictureError(str(error)) from error
        weights = example.weights if example.weights is not None else np.ones(len(example.ids), np.float32)
        return PicturedText(np.asarray(example.ids), weights, pictures)

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a conversation with its pictures; the error of one that can't be used names file and line."""
        try:
            return super().item_row(number, index)
        except PictureError as error:
            message = f"{self.split_items[number].name}: {error}"
            raise PictureError(message) from error

    def _picture(self, where: str, table: str) -> Any:
        cfg = self.config
        if where.startswith("data:"):
            data = data_url_bytes(where)
        else:
            folder, _, _ = table.rpartition("/")
            address = where if is_address(where) or where.startswith("/") else f"{folder}/{where}" if folder else where
            try:
                data = item_bytes(Item(where, "", address))
            except (CorpusError, OSError) as error:
                message = f"{address}: {error}"
                raise PictureError(message) from error
        try:
            return decoded(data, cfg.channels, cfg.max_pixels)
        except PictureError as error:
            message = f"{where[:80]}: {error}"
            raise PictureError(message) from error


def data_url_bytes(url: str) -> bytes:
    """Returns the bytes of a data URL, `data:image/png;base64,…`; raises PictureError for another."""
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        message = f"{url[:40]!r} is no data URL in base64: expected data:image/png;base64,…"
        raise PictureError(message)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        message = f"a data URL that isn't base64: {error}"
        raise PictureError(message) from error


def picture_of_part(part: Mapping[str, Any]) -> str | None:
    """Returns where the picture of a message's part is: a path, an address or a data URL; None of other parts."""
    if part.get("type") not in ("image", "image_url"):
        return None
    held = part.get("image_url", part.get("path", part.get("image", part.get("url"))))
    held = held.get("url") if isinstance(held, Mapping) else held
    if not isinstance(held, str):
        raise RecordError(at="messages", why="a part of type image has no path, url or image_url")
    return held


def _with_marks(fields: Mapping[str, Any], mark: str, found: list[str]) -> dict[str, Any]:
    """Returns a record with `mark` in place of its pictures, and appends where they are to `found`."""
    made = dict(fields)
    held = made.pop("images", None) or made.pop("image", None) or []
    found += [held] if isinstance(held, str) else list(held)
    for name in ("messages", "prompt", "completion"):
        if isinstance(made.get(name), list):
            made[name] = [_message_with_marks(message, mark, found) for message in made[name]]
    return made


def _message_with_marks(message: Any, mark: str, found: list[str]) -> Any:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    parts = []
    for part in message["content"]:
        where = picture_of_part(part) if isinstance(part, Mapping) else None
        if where is not None:
            found.append(where)
        parts.append(part if where is None else {"type": "text", "text": mark})
    return {**message, "content": parts}
