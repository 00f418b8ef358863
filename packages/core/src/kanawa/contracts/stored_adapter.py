"""Adapters on disk, of runs and of other libraries. Packages meet in `AdapterStore`."""

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.config import Config


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
