"""Rows of a picture and its text each, and where there are labels their texts: what sources of pairs share."""

import abc
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from kanawa.config import Size
from kanawa.contracts import ImageTextBatch, RowField, Shown

from kanawa_runtime.data.images.pictures import Pictures
from kanawa_runtime.data.single_rows import TokenizedRows


class Captioned(NamedTuple):
    """A picture (Pillow's), its text, and the id of its label, -1 of none."""

    picture: Any
    text: str
    label: int = -1


class CaptionedPictures(Pictures, TokenizedRows):
    """Rows of pictures with the ids of their texts, between what texts of the tokenizer begin and end with.

    A text that is too long loses its end. A subclass says what a pair is, and which texts labels have: `captioned`,
    `label_texts`.
    """

    batch = ImageTextBatch
    unit: ClassVar[str] = "pairs"

    class Config(Pictures.Config, TokenizedRows.Config):
        sequence_length: Size = 64

        def fit(self, model: Any) -> None:
            """Sets the size of pictures and the length of texts to those of the model."""
            super().fit(model)
            shape = model._target.row_shapes(model).get("input_ids")
            if shape is not None:
                self.set(sequence_length=shape[0])

    @abc.abstractmethod
    def captioned(self, number: int) -> Captioned:
        """Returns pair `number` of the split; raises PictureError for none."""

    @property
    def label_texts(self) -> tuple[str, ...]:
        """The text of each label, in the order of their ids; () where pictures have no labels."""
        return ()

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The picture, its text, its weight, and where there are labels its label and their texts."""
        length, labels = self.config.sequence_length, len(self.label_texts)
        ids = RowField((length,), "int32", ("length",))
        return {
            "images": self.picture_field,
            "input_ids": ids,
            "segment_ids": ids,
            "loss_weights": RowField((), "float32", ()),
            "target_ids": RowField((), "int32", ()) if labels else None,
            "label_ids": RowField((labels, length), "int32", (None, None)) if labels else None,
        }

    def ids_of(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a text, padded, and 1 for each of them and 0 for padding, int32 [sequence_length]."""
        length = self.config.sequence_length
        whole, _ = self.whole_ids(text, length)
        ids = np.full(length, self.tokenizer.pad_id, np.int32)
        ids[: len(whole)] = whole
        return ids, (np.arange(length) < len(whole)).astype(np.int32)

    @functools.cached_property
    def _label_ids(self) -> np.ndarray:
        return np.stack([self.ids_of(text)[0] for text in self.label_texts])

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a pair with weight 1."""
        found = self.captioned(number)
        ids, segments = self.ids_of(found.text)
        row = {
            "images": self.pixels(found.picture, index),
            "input_ids": ids,
            "segment_ids": segments,
            "loss_weights": np.array(1.0, np.float32),
        }
        if self.label_texts:
            row |= {"target_ids": np.array(found.label, np.int32), "label_ids": self._label_ids.copy()}
        return row

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns the picture and its text."""
        text = self.tokenizer.decode(row["input_ids"][row["segment_ids"] > 0])
        return Shown(text if row["loss_weights"] > 0 else "left out", np.asarray(row["images"]))
