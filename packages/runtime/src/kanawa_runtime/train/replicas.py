"""Silent data corruption: now and then replicas are compared after a step, and a step that differs is taken again.

Every device digests its own parts, where they are. Arrays that are laid out alike share one digest, so that what
devices exchange is a few words, however large the model."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.errors import KanawaError

from kanawa_runtime.checkpoint.digest import array_words_digest
from kanawa_runtime.exit_codes import LOST


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


#: `transient`: taken again, all agree; `persistent`: they differ again; `earlier`: they differed before the step.
Kind = Literal["transient", "persistent", "earlier"]


class ReplicasDifferError(KanawaError):
    """Devices that should hold the same numbers don't; the run can resume from a checkpoint."""

    exit_code = LOST


class ReplicaCheck:
    """Takes every `every_steps`th step under observation. `on_event` gets what was seen, `go_back` a step to trust.

    The state before such a step is retained while it runs: that is the memory it needs.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        every_steps: int,
        on_event: Callable[[Mapping[str, Any]], None],
        go_back: Callable[[int], list[str]],
        trusted: int,
    ) -> None:
        self._program = program
        self._every_steps = every_steps
        self._on_event = on_event
        self._go_back = go_back
        self._trusted = trusted
        self._layouts: Layouts | None = None

    def is_due(self, step: int) -> bool:
        """Whether the update number `step` is one to observe."""
        return step % self._every_steps == 0

    def take(self, state: Any, batch: Any, step: int) -> Any:
        """Returns what the step gives for a state, which is donated; raises ReplicasDifferError."""
        kept = jax.tree.map(copied, state)
        after = self._program(state, batch)
        first = self._odd(after[0])
        if not first:
            self._trusted = step
            return after
        before = self._odd(kept)
        if before:
            self._report("earlier", before, step)
            aside = self._go_back(self._trusted)
            raise ReplicasDifferError(self._message("earlier", before, step, aside))
        again = self._program(kept, batch)
        second = self._odd(again[0])
        kind: Kind = "persistent" if second else "transient"
        self._report(kind, first, step)
        if second:
            # The state before the step was the same everywhere.
            self._trusted = step - 1
            raise ReplicasDifferError(self._message(kind, second, step, self._go_back(self._trusted)))
        self._trusted = step
        return again

    def _odd(self, state: Any) -> tuple[int, ...]:
        arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
        if self._layouts is None:
            self._layouts = Layouts.of(arrays)
        if not self._layouts.leaves:
            return ()
        own = local_digests(arrays, self._layouts)
        return differing(all_digests(own, len(self._layouts.leaves)), self._layouts)

    def _report(self, kind: Kind, odd: tuple[int, ...], step: int) -> None:
        self._on_event({"step": step, "verdict": kind, "devices": list(odd), "ranks": ranks_of(odd)})

    def _message(self, kind: Kind, odd: tuple[int, ...], step: int, aside: list[str]) -> str:
        ranks = ", ".join(map(str, ranks_of(odd)))
        when = {
            "earlier": f"some time after step {self._trusted}",
            "persistent": f"in step {step}, and again when that was taken a second time",
            "transient": f"in step {step}",
        }[kind]
        kept = f" Checkpoints after step {self._trusted} are set aside: {', '.join(aside)}." if aside else ""
        return (
            f"replicas differ: devices {list(odd)} of rank {ranks} computed other numbers than the rest, {when}.{kept} "
            "The same command resumes from the newest checkpoint that is left; check those hosts, or replace them"
        )


def ranks_of(devices: tuple[int, ...]) -> list[int]:
    """Returns the processes that devices belong to."""
    by_id = {device.id: device.process_index for device in jax.devices()}
    return sorted({by_id[device] for device in devices})
