"""Pictures of files: folders by class, JSON Lines, CSV or Parquet that name files, WebDataset shards."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from kanawa.config import REQUIRED, Config, Count, Size, apply_override
from kanawa.errors import KanawaError

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.decode import PictureError, decoded
from kanawa_runtime.data.images.items import Item, in_order, items_of, split_items
from kanawa_runtime.data.images.pictures import PictureSource
from kanawa_runtime.data.own_files import address_and_options, placed
from kanawa_runtime.data.records.addresses import opened_as_it_is


class ImageFiles(PictureSource):
    """Rows of pictures in files, decoded when a row is read, by the threads of the loader.

    The digest is that of the pictures' names, sizes and classes: their bytes are not read for it.
    """

    class Config(PictureSource.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("root", "max_pixels")

        #: Globs, folders or files, absolute or relative to `root`; see TextFiles.
        files: tuple[str, ...] = REQUIRED
        root: str = "."
        #: The names of the classes in the order of their ids; () takes those of the files, sorted.
        class_names: tuple[str, ...] = ()
        #: Of tables, and of .json in shards.
        image_field: str = "image"
        label_field: str = "label"
        #: One picture in this many, chosen by the hash of its name, is held out where the data name no split.
        validation_one_in: Count = 20
        #: Whether other channels are converted; if not, such a picture is a bad one.
        convert: bool = True
        #: More are refused before any is decoded; Pillow's own limit is twice this.
        max_pixels: Size = 89_478_485

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the pictures of `FOLDER[:field=value,…]`, in the size that the model takes, with its classes."""
            address, options = address_and_options(address)
            own = experiment.data
            root, glob = placed(address)
            cfg: Self = own.clone() if isinstance(own, cls) else cls(files=())
            if not isinstance(own, cls) and isinstance(own, PictureSource.Config):
                shared = ("height", "width", "channels", "augmentations")
                cfg.set(**{name: getattr(own, name) for name in shared})
            cfg.set(files=(glob,), root=root, class_names=())
            model: Any = experiment.model
            shape = model._target.row_shapes(model).get("images")
            if shape is not None:
                cfg.set(height=shape[0], width=shape[1], channels=shape[2])
            for name, value in options.items():
                try:
                    apply_override(cfg, f"{name}={value}")
                except KanawaError as error:
                    error.add_note(f"in --data {address}:…")
                    raise
            if not cfg.class_names:
                found = in_order(item.label for item in ImageFiles(cfg.clone().freeze()).items)
                # A model that knows them already keeps its own order.
                known = model.class_names if "class_names" in model.fields() else ()
                cfg.set(class_names=known if set(found) <= set(known) else found)
            return cfg

    @functools.cached_property
    def _listing(self) -> tuple[list[Item], list[str]]:
        cfg = self.config
        return items_of(cfg.files, cfg.root, cfg.image_field, cfg.label_field, cfg.on_bad)

    @property
    def items(self) -> list[Item]:
        """All pictures of both splits; the files are listed once."""
        return self._listing[0]

    @functools.cached_property
    def _classes(self) -> dict[str, int]:
        """The ids of the classes; raises CorpusError for a picture of another class."""
        names = self.config.class_names or in_order(item.label for item in self.items)
        ids = {name: number for number, name in enumerate(names)}
        other = next((item for item in self.items if item.label not in ids), None)
        if other is not None:
            message = (
                f"{other.address}: class {other.label!r} is none of the {len(ids)} of data.class_names "
                f"({', '.join(names[:8])}{', …' if len(names) > 8 else ''}); remove it, or begin a new run"
            )
            raise CorpusError(message)
        return ids

    @functools.cached_property
    def _split(self) -> list[Item]:
        return split_items(self.items, self.config.split, self.config.validation_one_in)

    @property
    def class_names(self) -> tuple[str, ...]:
        """As configured."""
        names: tuple[str, ...] = self.config.class_names
        return names

    @property
    def count(self) -> int:
        """The pictures of the split; raises CorpusError where it has none to train on."""
        if not self._split and self.config.split == "train":
            message = f"all {len(self.items)} pictures are held out; set data.validation_one_in=0, or give more"
            raise CorpusError(message)
        return len(self._split)

    @functools.cached_property
    def content(self) -> Any:
        """The names, sizes, classes and splits of all pictures."""
        return [(item.name, item.label, item.split, _size(item)) for item in self.items]

    def picture(self, number: int) -> tuple[Any, int]:
        """Returns a picture, read and decoded now; raises PictureError, CorpusError for what can't be read."""
        cfg, item = self.config, self._split[number]
        try:
            picture = decoded(_bytes(item), cfg.channels, cfg.max_pixels, convert=cfg.convert)
        except PictureError as error:
            place = item.address if item.size is None else item.name
            message = f"{place}: {error}"
            raise PictureError(message) from error
        return picture, self._classes[item.label]

    def account(self) -> Mapping[str, Any]:
        """Returns how many pictures and classes there are, and rows of tables that were left out."""
        problems = self._listing[1]
        counted = {"pictures": len(self.items), "classes": len(self._classes), "skipped": len(problems)}
        return {**counted, "reasons": problems[:3]}

    def once(self, split: Split | None = None) -> Self:
        """Returns the pictures of a split once through, sharing the listing."""
        rows = super().once(split)
        vars(rows)["_listing"] = self._listing
        return rows

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the picture's `name`, its class as `label` and its `address`."""
        item = self._split[self.place(index).number]
        return {"name": item.name, "label": item.label, "address": item.address}


def _bytes(item: Item) -> bytes:
    if item.data is not None:
        return item.data
    with opened_as_it_is(item.address) as stream:
        stream.seek(item.start)
        return stream.read(-1 if item.size is None else item.size)


def _size(item: Item) -> int:
    """Returns the bytes of a picture; 0 at an address, where asking takes a request each."""
    if item.data is not None:
        return len(item.data)
    if item.size is not None:
        return item.size
    path = Path(item.address)
    return path.stat().st_size if path.is_file() else 0
