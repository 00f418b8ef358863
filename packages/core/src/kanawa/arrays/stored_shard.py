"""A parameter inside a shard_map as it is stored: gathered where it is read, in the dtype that it is read in."""

import dataclasses
from typing import Any

import jax

from kanawa.arrays.rules import Assignment


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StoredShard:
    """This device's part of a parameter; `gathered` are the mesh axes of each dimension that readers want whole."""

    array: jax.Array
    gathered: Assignment = dataclasses.field(metadata={"static": True})

    def whole(self, dtype: Any) -> jax.Array:
        """Returns the parameter in `dtype`, cast before it is sent; gradients are added up as scattered parts."""
        whole = self.array.astype(dtype)
        for dimension, names in enumerate(self.gathered):
            if names:
                whole = jax.lax.all_gather(whole, names, axis=dimension, tiled=True)
        return whole
