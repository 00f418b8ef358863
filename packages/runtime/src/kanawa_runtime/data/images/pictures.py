"""Rows of one picture and its class each: what sources of files and of drawn pictures share."""

import abc
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from kanawa.config import Size
from kanawa.contracts import ImageBatch, Recognises, RowField, Shown
from kanawa.errors import ConfigError

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.images.augment import Augmentation, Extent, fitted
from kanawa_runtime.data.images.draws import Draws
from kanawa_runtime.data.images.proportions import Grid, grid_of, tiled, untiled
from kanawa_runtime.data.single_rows import SingleRows

#: The stream of random numbers of augmentations.
_CHANGE = 4


class Pictures(SingleRows):
    """Rows that have uint8 `images` [height, width, channels].

    Each picture is changed by random numbers that are functions of the seed and the row.
    """

    class Config(SingleRows.Config):
        height: Size = 224
        width: Size = 224
        #: 3 in colour, 1 grey.
        channels: Literal[1, 3] = 3
        #: In this order, on training pictures only; what isn't of the size after them is cut to its middle.
        augmentations: tuple[Augmentation.Config, ...] = ()

        def fit(self, model: Any) -> None:
            """Sets the size to that of the model's images, where it has one."""
            shape = model._target.row_shapes(model).get("images")
            if shape is not None:
                if shape[2] not in (1, 3):
                    message = (
                        f"{model._target.__qualname__} learns from latents of {shape[2]} channels, not from pictures; "
                        "name the autoencoder that makes them of pictures: --modify autoencoder:folder=FOLDER"
                    )
                    raise ConfigError(message)
                self.set(height=shape[0], width=shape[1], channels=shape[2])

    @property
    def picture_field(self) -> RowField:
        """The picture's."""
        cfg = self.config
        return RowField((cfg.height, cfg.width, cfg.channels), "uint8", (None, None, None))

    @functools.cached_property
    def _augmentations(self) -> tuple[Augmentation, ...]:
        return tuple(cfg.clone().build() for cfg in self.config.augmentations)

    def pixels(self, picture: Any, index: int, extent: Extent | None = None) -> np.ndarray:
        """Returns a picture (Pillow's) as row `index` has it: changed, and of the extent, by default the rows' size."""
        cfg = self.config
        extent = Extent(cfg.height, cfg.width) if extent is None else extent
        for place, augmentation in enumerate(self._augmentations):
            picture = augmentation(picture, extent, Draws(cfg.seed, _CHANGE, index, place))
        return np.array(fitted(picture, extent)).reshape(*extent, cfg.channels)

    def _once(self, split: Split | None) -> Any:
        return super()._once(split).set(augmentations=())


class PictureSource(Pictures):
    """Rows of pictures with the ids of their classes. A subclass says what a picture is: `picture`."""

    batch = ImageBatch
    unit: ClassVar[str] = "images"

    class Config(Pictures.Config):
        #: Whether a picture keeps its proportions: it gets at most as many patches as the rows' size has, and a row's
        #: array holds them one after another, then zeros. If not, all are cut to the rows' size.
        own_proportions: bool = False
        #: The side of the model's patches; None of one that takes pictures of one size.
        patch_size: Size | None = None

        def fit(self, model: Any) -> None:
            """Sets the size, and the side of patches."""
            super().fit(model)
            kind = model._target
            self.set(patch_size=kind.patch_side(model) if issubclass(kind, Recognises) else None)

        def check(self) -> list[str]:
            """Returns why pictures can't keep their proportions."""
            if not self.own_proportions or (self.patch_size and not (self.height % self.patch_size)):
                return []
            if self.patch_size is None:
                return ["own_proportions is set, and the model takes pictures of one size"]
            return [f"height ({self.height}) is not a multiple of patch_size ({self.patch_size})"]

    @abc.abstractmethod
    def picture(self, number: int) -> tuple[Any, int]:
        """Returns picture `number` of the split (Pillow's) and the id of its class; raises PictureError for none."""

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The picture, its class, its weight, and where it keeps its proportions its rows and columns of patches."""
        scalars = {"target_ids": RowField((), "int32", ()), "loss_weights": RowField((), "float32", ())}
        grid = RowField((2,), "int32", (None,)) if self.config.own_proportions else None
        return {"images": self.picture_field, **scalars, "grids": grid}

    def item_row(self, number: int, index: int) -> dict[str, np.ndarray]:
        """Returns a picture, its class and weight 1."""
        picture, target = self.picture(number)
        scalars = {"target_ids": np.array(target, np.int32), "loss_weights": np.array(1.0, np.float32)}
        cfg, side = self.config, self.config.patch_size
        if not cfg.own_proportions:
            return {"images": self.pixels(picture, index), **scalars}
        grid = grid_of(picture.height, picture.width, (cfg.height // side) * (cfg.width // side))
        pixels = self.pixels(picture, index, Extent(grid.rows * side, grid.columns * side))
        images = tiled(pixels, side, (cfg.height, cfg.width, cfg.channels))
        return {"images": images, **scalars, "grids": np.array(grid, np.int32)}

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown:
        """Returns the picture, and the name of its class."""
        names, target = self.class_names, int(row["target_ids"])
        name = names[target] if target < len(names) else f"class {target}"
        images = np.asarray(row["images"])
        if self.config.own_proportions:
            images = untiled(images, self.config.patch_size, Grid(*map(int, row["grids"])))
        return Shown(name if row["loss_weights"] > 0 else "left out", images)
