"""Where arrays wait between steps: in device memory, or in the host's, from which a step fetches them."""

from collections.abc import Mapping

import jax
from jax.sharding import NamedSharding

from kanawa.arrays.plan import current_plan

#: What a sharding may name; platforms without pinned host memory refuse it when placing or compiling.
MEMORIES = ("device", "pinned_host")


def kept_in(leaf: jax.ShapeDtypeStruct, memory: str) -> jax.ShapeDtypeStruct:
    """Returns the array's abstract form in `memory`; numbers and arrays without a mesh stay on the device."""
    if memory == "device" or not leaf.shape or not isinstance(leaf.sharding, NamedSharding):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(memory))


def on_device(state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns optimizer state in device memory, for a step that computes with it; its outputs go back by themselves."""
    if current_plan().optimizer_memory == "device":
        return dict(state)
    # Scalars (counts) never leave: the transfer would cost more than they weigh.
    return {name: jax.device_put(x, jax.memory.Space.Device) if x.ndim else x for name, x in state.items()}
