"""The plain way to take gradients, the whole batch at once; and how a drill spoils them (`kanawa_runtime.faults`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from kanawa.contracts import GradientStrategy, LossProgram
from kanawa.module import Outputs

from kanawa_runtime import faults


class WholeBatch(GradientStrategy):
    """Differentiates the loss of the whole batch in one pass."""

    is_plain_sum = True

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients and outputs."""

        def total(p: Any) -> tuple[jax.Array, Outputs]:
            outputs = loss(p, state, batch, key)
            return outputs.total_loss(), outputs

        gradients, outputs = jax.grad(total, has_aux=True)(params)
        return gradients, outputs


def spoilt(gradients: Any, step: jax.Array) -> Any:
    """Returns the gradients; with faults at `in_gradient`, whose NTH is the number of the update, spoilt ones."""
    asked = faults.in_program("in_gradient")
    if not asked:
        return gradients
    leaves, tree = jax.tree.flatten(gradients)
    largest = max(range(len(leaves)), key=lambda number: leaves[number].size)
    for fault in asked:
        leaves[largest] = _spoilt(leaves[largest], fault, step + 1)
    return jax.tree.unflatten(tree, leaves)


def _spoilt(leaf: jax.Array, fault: faults.Fault, step: jax.Array) -> jax.Array:
    mesh = jax.sharding.get_abstract_mesh()
    in_time = (step >= fault.first) & ((step <= fault.last) if fault.last is not None else True)
    if fault.action == "nan":
        return jnp.where(in_time, jnp.nan, leaf)
    bit = np.uint32(1 << int(10 if fault.value is None else fault.value))

    def flipped(part: jax.Array) -> jax.Array:
        mine = in_time if mesh.empty else in_time & (_position(mesh) == _first_device_of(fault.rank or 0))
        words = jax.lax.bitcast_convert_type(part.astype(jnp.float32), jnp.uint32).reshape(-1)
        spoilt_words = words.at[0].set(words[0] ^ bit)
        chosen = jnp.where(mine, spoilt_words, words).reshape(part.shape)
        return jax.lax.bitcast_convert_type(chosen, jnp.float32).astype(part.dtype)

    if mesh.empty:
        return flipped(leaf)
    # Declared whole on every device, and on one of them it is not: what a faulty device does.
    whole = PartitionSpec()
    return jax.shard_map(flipped, in_specs=whole, out_specs=whole, check_vma=False)(leaf)


def _position(mesh: jax.sharding.AbstractMesh) -> jax.Array:
    """Returns the number of this device in the mesh."""
    number = jnp.zeros((), jnp.int32)
    for axis, size in mesh.shape.items():
        number = number * size + jax.lax.axis_index(axis)
    return number


def _first_device_of(rank: int) -> int:
    """Returns the number of a process's first device, in meshes that take devices in their order."""
    return next(number for number, device in enumerate(jax.devices()) if device.process_index == rank)
