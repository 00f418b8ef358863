"""Pictures of files with texts: captions in tables, beside the pictures or in shards; or the texts of their classes."""

from typing import Any, ClassVar, Self

from kanawa.config import Config

from kanawa_runtime.data.images.captioned import Captioned, CaptionedPictures
from kanawa_runtime.data.images.decode import PICTURES
from kanawa_runtime.data.images.files import PicturesByClass, PicturesInFiles
from kanawa_runtime.data.media_items import Kind, words_problem
from kanawa_runtime.data.own_files import address_and_options, placed
from kanawa_runtime.data.records.addresses import suffix_of
from kanawa_runtime.data.records.listing import found_files

_PLACEMENT: tuple[str, ...] = ("root", "max_pixels", "tokenizer_file")


class ImageTexts(PicturesInFiles, CaptionedPictures):
    """Rows of pictures in files with their captions."""

    class Config(PicturesInFiles.Config, CaptionedPictures.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = _PLACEMENT

        #: Of tables, and of .json in shards.
        text_field: str = "text"

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the pairs of `ADDRESS[:field=value,…]`, in the model's sizes; None for folders by class."""
            return None if _has_classes(address) else super().of_files(address, experiment)

    @property
    def kind(self) -> Kind:
        """Pictures with captions."""
        cfg = self.config
        fields = cfg.image_field, cfg.text_field
        return Kind("picture", PICTURES, *fields, "a caption", (".txt", ".caption"), False, words_problem)

    def captioned(self, number: int) -> Captioned:
        """Returns a picture, read and decoded now, with its caption."""
        item = self.split_items[number]
        return Captioned(self.decoded(item), item.text)

    @property
    def content(self) -> Any:
        """The items, and the tokenizer."""
        return [super().content, self.tokenizer.digest]


class ImageLabelTexts(PicturesByClass, CaptionedPictures):
    """Rows of pictures with classes, as `ImageFiles` finds them; the text of a picture is `prompt` with its class.

    A model of pictures and texts is evaluated on them without having learned the classes: zero-shot.
    """

    class Config(PicturesByClass.Config, CaptionedPictures.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = _PLACEMENT

        prompt: str = "a photo of a {}."

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> Self | None:
            """Returns the pictures of `FOLDER[:field=value,…]` with their classes; None for those with captions."""
            return super().of_files(address, experiment) if _has_classes(address) else None

        def check(self) -> list[str]:
            """Returns what is wrong with the prompt."""
            return [] if "{}" in self.prompt else [f"prompt is {self.prompt!r}, expected {{}} where the class goes"]

    @property
    def label_texts(self) -> tuple[str, ...]:
        """The prompt with each class."""
        return tuple(self.config.prompt.replace("{}", name) for name in self.class_names)

    def captioned(self, number: int) -> Captioned:
        """Returns a picture, read and decoded now, with the text of its class."""
        picture, label = self.picture(number)
        return Captioned(picture, self.label_texts[label], label)

    @property
    def content(self) -> Any:
        """The items, and the tokenizer."""
        return [super().content, self.tokenizer.digest]


def _has_classes(address: str) -> bool:
    """Returns whether `--data` names classes: by a field's name or a prompt, or folders without any text."""
    address, options = address_and_options(address)
    if {"label_field", "prompt", "class_names"} & options.keys():
        return True
    root, glob = placed(address)
    return all(suffix_of(file.name) in PICTURES for file in found_files([glob], root))
