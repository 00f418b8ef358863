"""Rows of one picture and its class each: what sources of files and of drawn pictures share."""

import abc
import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts import DataSource, ImageBatch, RowField, Shown

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.augment import Augmentation, Extent, fitted
from kanawa_runtime.data.images.decode import PictureError
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.permutation import permutation
from kanawa_runtime.data.records.usable import OnBad

logger = logging.getLogger(__name__)

#: Streams of random numbers; packed sources use 0 and 1, mixtures 2.
_ORDER, _CHANGE = 3, 4
#: Left-out rows that are named; of later ones some, with how many there are.
_NAMED = 3


class Pass(NamedTuple):
    """Which picture of the split a row holds, in which epoch."""

    number: int
    epoch: int


class PictureSource(DataSource):
    """Rows of uint8 `images` [height, width, channels] with the id of their class.

    Each picture of the split comes once an epoch, in an order and changed by random numbers that are functions of the
    seed, the epoch and the row. A subclass says how many pictures there are and what one is: `count`, `picture`.
    """

    batch = ImageBatch
    unit: ClassVar[str] = "images"

    class Config(DataSource.Config):
        height: Size = 224
        width: Size = 224
        #: 3 in colour, 1 grey.
        channels: Literal[1, 3] = 3
        #: In this order, on training pictures only; what isn't of the size after them is cut to its middle.
        augmentations: tuple[Augmentation.Config, ...] = ()
        split: Split = "train"
        shuffle: bool = True
        #: None repeats for ever.
        epochs: Size | None = None
        #: Whether what is no picture stops the run, or leaves a row of weight 0: the other rows stay what they are.
        on_bad: OnBad = "stop"

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many pictures the split has."""

    @abc.abstractmethod
    def picture(self, number: int) -> tuple[Any, int]:
        """Returns picture `number` of the split (Pillow's) and the id of its class; raises PictureError for none."""

    @property
    @abc.abstractmethod
    def content(self) -> Any:
        """What pictures depend on beside the config, as JSON."""

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The picture, its class and its weight."""
        cfg = self.config
        images = RowField((cfg.height, cfg.width, cfg.channels), "uint8", (None, None, None))
        return {"images": images, "target_ids": RowField((), "int32", ()), "loss_weights": RowField((), "float32", ())}

    @property
    def num_rows(self) -> int | None:
        """Pictures in all epochs; None when they repeat for ever."""
        return None if self.config.epochs is None else self.count * self.config.epochs

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the content and every setting; where files lie enters by their names alone."""
        settings: dict[str, Any] = to_json(self.config)
        for field in self.config.PLACEMENT:
            settings.pop(field, None)
        return hashlib.sha256(json.dumps([self.content, settings], sort_keys=True).encode()).hexdigest()

    #: Rows that were left out so far, by this process.
    num_left_out = 0

    def place(self, index: int) -> Pass:
        """Returns which picture row `index` holds; raises IndexError past the end."""
        end = self.num_rows
        if index < 0 or (end is not None and index >= end):
            message = f"row {index}: there are rows 0 to {end - 1 if end else 'without end'}"
            raise IndexError(message)
        epoch, number = divmod(index, self.count)
        return Pass(int(self._order(epoch)[number]) if self.config.shuffle else number, epoch)

    @functools.cached_property
    def _order(self) -> Any:
        """The order of the pictures by epoch; two stay, since rows are read ahead across an epoch's end."""
        return functools.lru_cache(2)(lambda epoch: permutation(self.count, self.config.seed, _ORDER, epoch))

    @functools.cached_property
    def _augmentations(self) -> tuple[Augmentation, ...]:
        return tuple(cfg.clone().build() for cfg in self.config.augmentations)

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; a picture that is left out is black and has weight 0."""
        cfg = self.config
        extent = Extent(cfg.height, cfg.width)
        try:
            picture, target = self.picture(self.place(index).number)
        except PictureError as error:
            return self._left_out(index, error)
        for place, augmentation in enumerate(self._augmentations):
            picture = augmentation(picture, extent, Draws(cfg.seed, _CHANGE, index, place))
        pixels = np.array(fitted(picture, extent)).reshape(*extent, cfg.channels)
        return _row(pixels, target, 1.0)

    def _left_out(self, index: int, error: PictureError) -> dict[str, np.ndarray]:
        """Returns a row of weight 0; raises CorpusError where bad pictures stop the run."""
        cfg = self.config
        if cfg.on_bad == "stop":
            message = f"row {index}: {error}; leave such pictures out with --set data.on_bad=skip"
            raise CorpusError(message) from error
        self.num_left_out += 1
        if self.num_left_out <= _NAMED or self.num_left_out.bit_count() == 1:
            logger.warning("row %d is left out, the %d. so far: %s", index, self.num_left_out, error)
        return _row(np.zeros((cfg.height, cfg.width, cfg.channels), np.uint8), 0, 0.0)

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns the picture, and the name of its class."""
        names, target = self.class_names, int(row["target_ids"])
        name = names[target] if target < len(names) else f"class {target}"
        return Shown(name if row["loss_weights"] > 0 else "left out", np.asarray(row["images"]))

    def held_out(self) -> Self | None:
        """Returns the validation split, once through in order; None where nothing is held out."""
        rows = self.once("validation")
        return rows if rows.count else None

    def once(self, split: Split | None = None) -> Self:
        """Returns the pictures of a split, the config's unless named, once through in order and unchanged."""
        cfg = self.config.clone().set(split=split or self.config.split, epochs=1, shuffle=False, augmentations=())
        rows: Self = cfg.build()
        return rows


def _row(pixels: np.ndarray, target: int, weight: float) -> dict[str, np.ndarray]:
    return {"images": pixels, "target_ids": np.array(target, np.int32), "loss_weights": np.array(weight, np.float32)}
