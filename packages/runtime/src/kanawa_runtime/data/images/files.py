"""Pictures of files: folders by class, JSON Lines, CSV or Parquet that name files, WebDataset shards."""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from kanawa.config import Config, Size

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.decode import PICTURES, decoded
from kanawa_runtime.data.images.pictures import Pictures, PictureSource
from kanawa_runtime.data.media_files import MediaFiles, naming
from kanawa_runtime.data.media_items import Item, Kind, in_order, item_bytes


class PicturesInFiles(MediaFiles, Pictures):
    """Rows of pictures in files, decoded when a row is read, by the threads of the loader."""

    class Config(MediaFiles.Config, Pictures.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("root", "max_pixels")

        #: Of tables.
        image_field: str = "image"
        #: Whether other channels are converted; if not, such a picture is a bad one.
        convert: bool = True
        #: More are refused before any is decoded; Pillow's own limit is twice this.
        max_pixels: Size = 89_478_485

    def decoded(self, item: Item) -> Any:
        """Returns an item's picture (Pillow's); raises PictureError, CorpusError for what can't be read."""
        cfg = self.config
        with naming(item):
            return decoded(item_bytes(item), cfg.channels, cfg.max_pixels, convert=cfg.convert)


class PicturesByClass(PicturesInFiles):
    """Pictures in files with their classes."""

    class Config(PicturesInFiles.Config):
        #: The names of the classes in the order of their ids; () takes those of the files, sorted.
        class_names: tuple[str, ...] = ()
        #: Of tables, and of .json in shards.
        label_field: str = "label"

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the pictures of `FOLDER[:field=value,…]`, in the size that the model takes, with its classes."""
            cfg = super().of_files(address, experiment)
            if cfg is not None and not cfg.class_names:
                found = in_order(item.text for item in cfg.clone().build().items)
                # A model that knows them already keeps its own order.
                model: Any = vars(experiment)["model"]
                known = model.class_names if "class_names" in model.fields() else ()
                cfg.set(class_names=known if set(found) <= set(known) else found)
            return cfg

        def fit(self, model: Any) -> None:
            """Sets the size; the classes are to be those of the files."""
            super().fit(model)
            self.set(class_names=())

    @property
    def kind(self) -> Kind:
        """Pictures with classes."""
        cfg = self.config
        members = (".cls", ".cls.txt")
        return Kind("picture", PICTURES, cfg.image_field, cfg.label_field, "a class", members, True, lambda _: "")

    @functools.cached_property
    def _classes(self) -> dict[str, int]:
        """The ids of the classes; raises CorpusError for a picture of another class."""
        names = self.config.class_names or in_order(item.text for item in self.items)
        ids = {name: number for number, name in enumerate(names)}
        other = next((item for item in self.items if item.text not in ids), None)
        if other is not None:
            message = (
                f"{other.address}: class {other.text!r} is none of the {len(ids)} of data.class_names "
                f"({', '.join(names[:8])}{', …' if len(names) > 8 else ''}); remove it, or begin a new run"
            )
            raise CorpusError(message)
        return ids

    @property
    def class_names(self) -> tuple[str, ...]:
        """As configured."""
        names: tuple[str, ...] = self.config.class_names
        return names

    def picture(self, number: int) -> tuple[Any, int]:
        """Returns a picture, read and decoded now; raises PictureError, CorpusError for what can't be read."""
        item = self.split_items[number]
        return self.decoded(item), self._classes[item.text]

    def account(self) -> Mapping[str, Any]:
        """Returns how many pictures and classes there are, and rows of tables that were left out."""
        return {**super().account(), "classes": len(self._classes)}


class ImageFiles(PicturesByClass, PictureSource):
    """Rows of pictures in files with the ids of their classes."""

    class Config(PicturesByClass.Config, PictureSource.Config):
        pass
