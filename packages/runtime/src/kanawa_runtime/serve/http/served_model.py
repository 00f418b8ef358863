"""A served model: an engine, the tokenizer, and the settings in the model's folder."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kanawa_runtime.data.chats.picture_marks import PictureMarks
from kanawa_runtime.data.chats.template import ChatTemplate
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.request import Engine, TextEngine
from kanawa_runtime.serve.http.protocol import TextRequest
from kanawa_runtime.serve.http.sampling import DEFAULTED
from kanawa_runtime.serve.structured.grammars import Grammars

if TYPE_CHECKING:
    from kanawa_runtime.runs.open_run import OpenedRun


@dataclasses.dataclass
class ServedModel:
    """A model by the name that clients ask for; `reload` reads another step of its run, None where there is none."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    grammars: Grammars | None = None
    #: Why there are no grammars, where there are none.
    no_grammars: str = ""
    adapters: tuple[str, ...] = ()
    step: int = 0
    reload: Callable[[int | None], "OpenedRun"] | None = None
    #: The model as it was opened, where clients may train adapters of it.
    opened: "OpenedRun | None" = None
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    special: Mapping[int, str] = dataclasses.field(default_factory=dict)
    #: Where pictures are in its texts, of a model that reads them.
    pictures: PictureMarks | None = None

    def __post_init__(self) -> None:
        files = self.tokenizer.folder_files()
        if not self.defaults:
            self.defaults = generation_defaults(files)
        if not self.special:
            self.special = special_texts(files)

    @property
    def writes(self) -> bool:
        """Whether it writes texts."""
        return isinstance(self.engine, TextEngine)

    @property
    def text_engine(self) -> TextEngine:
        """The engine of a model that writes texts."""
        assert isinstance(self.engine, TextEngine)
        return self.engine

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model and of its adapters."""
        return (self.name, *self.adapters)


def generation_defaults(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the default sampling of a model's generation_config.json."""
    content = json.loads(files.get("generation_config.json", b"{}"))
    numbers = {name: content[name] for name in DEFAULTED if isinstance(content.get(name), int | float)}
    if content.get("do_sample") is False:
        numbers["temperature"] = 0.0
    return {name: number for name, number in numbers.items() if _is_sensible(name, number)}


def _is_sensible(name: str, number: float) -> bool:
    try:
        TextRequest.model_validate({name: number})
    except ValidationError:
        return False
    return True


def special_texts(files: Mapping[str, bytes]) -> dict[int, str]:
    """Returns the names of special ids, as a tokenizer.json lists them."""
    added = json.loads(files.get("tokenizer.json", b"{}")).get("added_tokens") or []
    return {int(token["id"]): str(token["content"]) for token in added if token.get("special")}
