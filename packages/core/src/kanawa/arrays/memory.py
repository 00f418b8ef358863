"""Where arrays are stored between steps: in device memory, or in host memory, from which a step copies them."""

from collections.abc import Mapping

import jax
from jax.sharding import NamedSharding

from kanawa.arrays.plan import current_plan

#: Memory kinds of shardings; platforms without pinned host memory refuse it when placing or compiling.
MEMORIES = ("device", "pinned_host")


def stored_in(leaf: jax.ShapeDtypeStruct, memory: str) -> jax.ShapeDtypeStruct:
    """Returns the array's abstract form in `memory`; scalars and arrays without a mesh stay on the device."""
    if memory == "device" or not leaf.shape or not isinstance(leaf.sharding, NamedSharding):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(memory))


def on_device(state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns optimizer state in device memory; the step's output shardings move it back."""
    if current_plan().optimizer_memory == "device":
        return dict(state)
    # Scalars (counts) are never moved: a transfer would cost more than it saves.
    return {name: jax.device_put(x, jax.memory.Space.Device) if x.ndim else x for name, x in state.items()}
