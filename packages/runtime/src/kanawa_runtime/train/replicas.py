"""Whether devices that hold the same part of an array hold the same bits, and which of them differ from the rest.

Every device digests its own parts, where they are. Arrays that are laid out alike share one digest, so that what
devices tell each other is a few words, however large the model.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kanawa_runtime.checkpoint.digest import array_words_digest


@dataclasses.dataclass(frozen=True)
class Layouts:
    """Which devices hold the same parts: for each layout its leaves, and the groups of devices that hold equal parts.

    A layout all of whose groups have one device has no replicas, and nothing to compare.
    """

    leaves: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...]

    @classmethod
    def of(cls, arrays: Sequence[jax.Array]) -> "Layouts":
        """Returns the layouts of arrays with replicas."""
        by_groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for number, array in enumerate(arrays):
            device: Any
            holders: dict[str, list[int]] = collections.defaultdict(list)
            for device, index in array.sharding.devices_indices_map(array.shape).items():
                holders[str(index)].append(device.id)
            groups = tuple(sorted(tuple(sorted(ids)) for ids in holders.values()))
            if any(len(group) > 1 for group in groups):
                by_groups.setdefault(groups, []).append(number)
        return cls(tuple(map(tuple, by_groups.values())), tuple(by_groups))


def local_digests(arrays: Sequence[jax.Array], layouts: Layouts) -> dict[int, np.ndarray]:
    """Returns uint32[layouts, 2] by the id of each device of this process."""
    started = {}
    for device in jax.local_devices():
        parts = [[_part(arrays[number], device) for number in leaves] for leaves in layouts.leaves]
        if parts and all(part is not None for group in parts for part in group):
            # What one device holds is no part of the mesh that the run computes on.
            with jax.set_mesh(jax.sharding.Mesh(np.array([device]), ("device",))):
                started[device.id] = _digests(parts)
    return {device: np.asarray(digests) for device, digests in started.items()}


def all_digests(own: Mapping[int, np.ndarray], num_layouts: int) -> dict[int, tuple[str, ...]]:
    """Returns each device's digests as text, of all processes; every process must call."""
    table = np.zeros((len(own), 1 + 2 * num_layouts), np.uint32)
    for row, (device, digests) in zip(table, sorted(own.items()), strict=True):
        row[0], row[1:] = device, digests.ravel()
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        table = np.asarray(multihost_utils.process_allgather(table)).reshape(-1, table.shape[1])
    return {int(row[0]): tuple(row[1 + 2 * i : 3 + 2 * i].tobytes().hex() for i in range(num_layouts)) for row in table}


def differing(digests: Mapping[int, tuple[str, ...]], layouts: Layouts) -> tuple[int, ...]:
    """Returns the devices whose parts differ from what most holders of the same part have.

    Where there is no majority, such as among two, all of them.
    """
    odd: set[int] = set()
    for number, groups in enumerate(layouts.groups):
        for group in groups:
            votes = collections.Counter(digests[device][number] for device in group)
            (best, count), *others = votes.most_common()
            if others and others[0][1] == count:
                odd.update(group)
            else:
                odd.update(device for device in group if digests[device][number] != best)
    return tuple(sorted(odd))


def copied(array: jax.Array) -> jax.Array:
    """Returns the array again, in memory of its own of the same kind."""
    if not _is_offloaded(array):
        return jnp.copy(array)
    # A program computes in a device's memory: what lies in the host's is copied there, part by part.
    parts = [jax.device_put(shard.data, shard.data.sharding, may_alias=False) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def _part(array: jax.Array, device: Any) -> jax.Array | None:
    part: jax.Array | None = next((shard.data for shard in array.addressable_shards if shard.device == device), None)
    if part is None or not _is_offloaded(part):
        return part
    # The device alone for a target means "where it is" to jax (as of 0.11), and then fails over the kind of memory.
    own = jax.sharding.SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    moved: jax.Array = jax.device_put(part, own)
    return moved


def _is_offloaded(array: jax.Array) -> bool:
    kind = array.sharding.memory_kind
    device: Any = next(iter(array.sharding.addressable_devices))
    return kind is not None and kind != device.default_memory().kind


@jax.jit
def _digests(parts: list[list[jax.Array]]) -> Any:
    """Returns uint32[layouts, 2]: what the digests of a layout's parts mix to, in their order."""
    rows = []
    for group in parts:
        total = jnp.zeros((2,), jnp.uint32)
        for part in group:
            # Order matters: two parts that swap their contents are no replicas any more.
            total = total * np.uint32(0x01000193) + array_words_digest(part)
        rows.append(total)
    return jnp.stack(rows)
