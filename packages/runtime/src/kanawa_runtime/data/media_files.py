"""Sources of pictures or recordings in files: which `--data` names, their splits, and an account of them."""

import abc
import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from kanawa.config import REQUIRED, Config, Count
from kanawa.errors import ConfigError

from kanawa_runtime.data.corpus import Split
from kanawa_runtime.data.errors import CorpusError, ItemError
from kanawa_runtime.data.media_items import Item, Kind, Listing, item_size, items_of, split_items
from kanawa_runtime.data.own_files import address_and_options, placed, with_options
from kanawa_runtime.data.single_rows import SingleRows


class MediaFiles(SingleRows):
    """Rows of items in files, read when a row is. A subclass says what the items are: `kind`.

    The digest is that of the items' names, texts and sizes: their bytes are not read for it.
    """

    class Config(SingleRows.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("root",)

        #: Globs, folders or files, absolute or relative to `root`; see TextFiles.
        files: tuple[str, ...] = REQUIRED
        root: str = "."
        #: One item in this many, chosen by the hash of its name, is held out where the data name no split.
        validation_one_in: Count = 20

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the items of `ADDRESS[:field=value,…]`, in the sizes that the model takes."""
            address, options = address_and_options(address)
            root, glob = placed(address)
            cfg, own = cls(files=()), vars(experiment).get("data")
            if isinstance(own, SingleRows.Config):
                shared = cfg.fields().keys() & own.fields().keys()
                cfg.set(**{name: getattr(own, name) for name in shared})
            cfg.set(files=(glob,), root=root)
            cfg.fit(vars(experiment).get("model"))
            return with_options(cfg, options, f"{address}:…")

        @classmethod
        def unnamed(cls, model: Config) -> Self | None:
            """Returns rows of no files, in the sizes that the model takes; None of one that takes no such items."""
            cfg = cls(files=())
            try:
                cfg.fit(model)
            except ConfigError:  # Latents have more channels than pictures; a model of texts may have no vocabulary.
                return None
            return cfg

    @property
    @abc.abstractmethod
    def kind(self) -> Kind:
        """What the items are."""

    @property
    def is_named(self) -> bool:
        """Whether the config has files."""
        return bool(self.config.files)

    @functools.cached_property
    def _listing(self) -> Listing:
        if not self.is_named:
            message = f"no {self.kind.noun}s are named: name them with --data, as in --data FOLDER"
            raise CorpusError(message)
        return self.listed()

    def listed(self) -> Listing:
        """Returns what the files hold; called once."""
        cfg = self.config
        return items_of(cfg.files, cfg.root, self.kind, cfg.on_bad)

    @property
    def items(self) -> list[Item]:
        """All items of both splits; the files are listed once."""
        return self._listing.items

    @functools.cached_property
    def split_items(self) -> list[Item]:
        """The items of the split."""
        return split_items(self.items, self.config.split, self.config.validation_one_in)

    @property
    def count(self) -> int:
        """The items of the split; raises CorpusError where it has none to train on."""
        if not self.split_items and self.config.split == "train":
            what = f"all {len(self.items)} {self.kind.noun}s are held out"
            message = f"{what}; set data.validation_one_in=0, or provide more"
            raise CorpusError(message)
        return len(self.split_items)

    @functools.cached_property
    def content(self) -> Any:
        """The names, texts, splits and sizes of all items."""
        return [(item.name, item.text, item.split, item_size(item)) for item in self.items]

    def account(self) -> Mapping[str, Any]:
        """Returns how many items there are, and how many were left out."""
        problems = self._listing.problems
        return {f"{self.kind.noun}s": len(self.items), "skipped": len(problems), "reasons": problems[:3]}

    def once(self, split: Split | None = None) -> Self:
        """Returns the items of a split, or all, once through, sharing the listing."""
        rows = super().once(split)
        vars(rows)["_listing"] = self._listing
        return rows

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the item's `name`, its text by the name of its field, and its `address`."""
        item = self.split_items[self.place(index).number]
        return {"name": item.name, self.kind.text_field: item.text, "address": item.address}


@contextlib.contextmanager
def naming(item: Item) -> Iterator[None]:
    """Puts the item's place before the reason of an ItemError."""
    try:
        yield
    except ItemError as error:
        place = item.address if item.size is None else item.name
        message = f"{place}: {error}"
        raise type(error)(message) from error
