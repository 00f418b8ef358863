"""Models and adapters on disk: of runs, or of another library. Packages meet in `ModelStore` and `AdapterStore`."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kanawa.config import Config
from kanawa.errors import UsageError
from kanawa.guarded_read import guarded_bytes

#: Of a tokenizer or a chat template; the largest vocabularies take a quarter.
MOST_CARRIED_BYTES = 128 * 2**20


class ForeignConfigError(UsageError):
    """Another library's config, or one of ours, says something that the other side has no words for."""


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """A model as found on disk, or as it is to be written.

    `params` and `state` map paths ("stack.layer.norm.scale") to host arrays, layers stacked. `files` are carried
    along unread: file name to where it lies, or to its content where no such file lies anywhere (tokenizer, chat
    template; names as Hugging Face folders have them). `notes` is JSON that the origin wants back when the model
    returns to it, such as its own config and the dtypes of its tensors.
    """

    config: Config
    params: Mapping[str, Any]
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Path | bytes] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write_files(self, folder: Path) -> None:
        """Writes the carried files into a folder; raises UnreadableFileError for what is no ordinary file."""
        for name, source in self.files.items():
            content = source if isinstance(source, bytes) else guarded_bytes(source, most=MOST_CARRIED_BYTES)
            (folder / name).write_bytes(content)


class ModelStore(abc.ABC):
    """One way to keep models in a directory; catalogued as `kanawa.model_stores`, built without arguments."""

    @abc.abstractmethod
    def holds(self, directory: Path) -> bool:
        """Returns whether the directory looks like this store's; reads no more than a small file."""

    @abc.abstractmethod
    def outline(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the model without its arrays: config, carried files and notes; reads no tensor.

        What a command needs that only derives an experiment, or looks for a tokenizer. Raises as `load` does.
        """

    @abc.abstractmethod
    def load(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the model, of a run the newest step or `step`; raises a KanawaError that says what is wrong."""

    @abc.abstractmethod
    def save(self, directory: Path, model: StoredModel) -> None:
        """Writes the model to a directory that must not hold anything yet; all or nothing."""


@dataclasses.dataclass(frozen=True)
class ForeignFamily:
    """How a family of models of another library maps to our configs; catalogued under its `model_type`.

    `from_foreign` returns our model config of the library's config (config.json as a dictionary). `to_foreign` is
    its inverse, and raises ForeignConfigError for a model the family can't express.
    """

    from_foreign: Callable[[Mapping[str, Any]], Config]
    to_foreign: Callable[[Config], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class StoredAdapter:
    """What an adapter adds to weights: `factors` (a, b) by the path of the projection, host arrays, fp32.

    a is [*layers, *inputs, rank] and b [*layers, rank, *outputs], scaled, with the leading axes of stacks around.
    """

    factors: Mapping[str, tuple[Any, Any]]

    @property
    def rank(self) -> int:
        """The highest rank of any of them; 0 of none."""
        return max((a.shape[-1] for a, _ in self.factors.values()), default=0)


class AdapterStore(abc.ABC):
    """One way to keep adapters in a directory; catalogued as `kanawa.adapter_stores`, built without arguments."""

    @abc.abstractmethod
    def holds(self, directory: Path) -> bool:
        """Returns whether the directory looks like this store's; reads no more than a small file."""

    @abc.abstractmethod
    def load(self, directory: Path, model: Config) -> StoredAdapter:
        """Returns the adapter of a model with this config, without adapters itself.

        Raises a KanawaError that names what is wrong, or made for another model.
        """
