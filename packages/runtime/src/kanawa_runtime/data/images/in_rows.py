"""Rows of tokens with pictures among them: what sources of chats about pictures share."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from kanawa.config import REQUIRED, Count, Size
from kanawa.contracts import ImageChatBatch, ReadsPictures, RowField, Shown

from kanawa_runtime.data.images.decode import PictureError
from kanawa_runtime.data.images.pictures import Pictures
from kanawa_runtime.data.single_rows import TokenizedRows


class PicturedText(NamedTuple):
    """Ids with one picture token for each of `pictures` (Pillow's), and 1 for those that are learned, else 0."""

    ids: np.ndarray
    weights: np.ndarray
    pictures: Sequence[Any]


class PicturesInRows(Pictures, TokenizedRows):
    """Rows of one text each, in which a picture is `tokens_per_picture` tokens `image_token_id`.

    A text that is too long loses its end. A subclass says what a text is: `pictured`.
    """

    batch = ImageChatBatch
    unit = "tokens"

    class Config(Pictures.Config, TokenizedRows.Config):
        #: These, and the size of pictures, are the model's: see `PictureTokens`.
        image_token_id: Count = REQUIRED
        tokens_per_picture: Size = REQUIRED
        mark_id: Count | None = None
        written: tuple[Count | str, ...] = ()
        #: Each row has room for as many.
        most_pictures: Size = 1

        def fit(self, model: Any) -> None:
            """Sets how the model reads a picture."""
            if issubclass(model._target, ReadsPictures):
                read = model._target.picture_tokens(model)
                height, width, channels = read.shape
                self.set(image_token_id=read.token_id, tokens_per_picture=read.num_tokens)
                self.set(mark_id=read.mark_id, written=read.written)
                self.set(height=height, width=width, channels=channels)

    @abc.abstractmethod
    def pictured(self, number: int) -> PicturedText:
        """Returns text `number` of the split; raises ItemError for one that can't be used."""

    @property
    def vocab_size(self) -> int:
        """The tokenizer's, and the picture token."""
        return max(self.tokenizer.vocab_size, int(self.config.image_token_id) + 1)

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The pictures, and the fields of rows of tokens; a row is one segment, 0 after its end."""
        cfg, picture = self.config, self.picture_field
        ids, weights = (RowField((cfg.sequence_length,), kind, ("length",)) for kind in ("int32", "float32"))
        return {
            "images": RowField((cfg.most_pictures, *picture.shape), picture.dtype, (None, *picture.axes)),
            **dict.fromkeys(("input_ids", "target_ids"), ids),
            "positions": None,
            "segment_ids": ids,
            "loss_weights": weights,
            "sources": None,
        }

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a text with its pictures."""
        cfg, found = self.config, self.pictured(number)
        is_picture = found.ids == cfg.image_token_id
        if is_picture.sum() != len(found.pictures):
            message = f"it has {len(found.pictures)} pictures, and {is_picture.sum()} places for them"
            raise PictureError(message)
        if len(found.pictures) > cfg.most_pictures:
            message = f"it has {len(found.pictures)} pictures, more than data.most_pictures ({cfg.most_pictures})"
            raise PictureError(message)
        times = np.where(is_picture, cfg.tokens_per_picture, 1)
        ids, weights = (np.repeat(array, times)[: cfg.sequence_length + 1] for array in (found.ids, found.weights))
        if not weights[1:].any():
            message = (
                f"no answer begins in the first {cfg.sequence_length} (data.sequence_length) of {times.sum()} tokens; "
                f"a picture is {cfg.tokens_per_picture}"
            )
            raise PictureError(message)
        made = {name: np.zeros(field.shape, field.dtype) for name, field in self.fields.items() if field is not None}
        count = len(ids) - 1
        made["input_ids"][:count], made["target_ids"][:count] = ids[:-1], ids[1:]
        made["segment_ids"][:count], made["loss_weights"][:count] = 1, weights[1:]
        for place, picture in enumerate(found.pictures):
            made["images"][place] = self.pixels(picture, index)
        return made

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns the text and its first picture."""
        ids = row["input_ids"][row["segment_ids"] > 0]
        return Shown(self.tokenizer.decode(ids[ids != self.config.image_token_id]), np.asarray(row["images"][0]))
