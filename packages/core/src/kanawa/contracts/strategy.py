"""What a parallelism contributes: two ordered tables from logical to mesh axes, and the mesh they speak of."""

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kanawa.arrays.distributed import Distributed
from kanawa.arrays.rules import Rules
from kanawa.config import Configurable

if TYPE_CHECKING:
    import jax


class Strategy(Configurable):
    """One parallelism, chosen in `execution.strategies`; several compose in the order they are listed."""

    @abc.abstractmethod
    def param_rules(self) -> Rules:
        """Returns rules for parameters and everything shaped like them."""

    @abc.abstractmethod
    def activation_rules(self) -> Rules:
        """Returns rules for activations, batches and caches."""

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns what runs operations over shards where rules alone can't: none, by default."""
        return ()


class MeshBuilder(Configurable):
    """Arranges devices in a mesh: `axes` multiply to the devices of a slice, `dcn_axes` to the number of slices.

    In each, one size may be -1 for what is left.
    """

    class Config(Configurable.Config):
        axes: dict[str, int] = {}
        dcn_axes: dict[str, int] = {}

    @abc.abstractmethod
    def shape(self, num_devices: int, slices: int = 1) -> Mapping[str, int]:
        """Returns the resolved sizes over all slices; raises ShardingError where they don't multiply to the count."""

    @abc.abstractmethod
    def mesh(self, devices: Sequence["jax.Device"], slices: int = 1) -> "jax.sharding.Mesh":
        """Returns the mesh with Auto axes over `devices`, neighbours on the fastest links."""
