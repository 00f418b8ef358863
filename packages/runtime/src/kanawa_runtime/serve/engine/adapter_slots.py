"""The slots of LoRA adapters: a model with adapter pools, and which adapter is in which slot."""

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import adapter_pools
from kanawa.contracts import AdapterPool, CausalLM, StoredAdapter
from kanawa.errors import UsageError, did_you_mean
from kanawa.module import param_specs
from kanawa.plugins import component

from kanawa_runtime.serve.engine.request import RequestError


@dataclasses.dataclass
class LoraSlot:
    """A slot in use by `users` sequences; a removed adapter's slot is free when they have ended."""

    index: int
    salt: str
    #: Of the adapter's numbers; equal in every process.
    digest: bytes
    users: int = 0
    is_removed: bool = False


class AdapterSlots:
    """The adapters of one engine, by name; slot 0 is none. Arrays are the host's: nothing here compiles.

    Used on the engine's thread, except `slot_of`, which only reads.
    """

    def __init__(self, model: CausalLM, slots: int, rank: int) -> None:
        """Raises UsageError where the model has no projections that could have adapters."""
        modifier = component("modifiers", "lora-pool", asker="kanawa-runtime").Config(slots=slots, rank=rank).build()
        #: The same model with empty slots; its parameters are the model's and `arrays`.
        self.model: CausalLM = modifier(model.config.clone()).build()
        self._specs: Mapping[str, ParamSpec] = flatten_paths(param_specs(self.model))
        self._pools: Mapping[str, tuple[AdapterPool, int]] = adapter_pools(self.model)
        prefixes = tuple(f"{path}.adapter." for path in self._pools)
        self._arrays = {
            path: np.zeros(spec.shape, spec.dtype) for path, spec in self._specs.items() if path.startswith(prefixes)
        }
        self._slots: dict[str, LoraSlot] = {}
        self._removed: list[LoraSlot] = []
        self._free = list(range(slots, 0, -1))
        self._generations = 0
        self.slots, self.rank = slots, rank
        #: Projections whose results requests of all adapters share: those that pictures pass through.
        self.shared: frozenset[str] = frozenset()

    def share(self, paths: Collection[str]) -> None:
        """Takes no adapters of the projections whose parameters have these paths."""
        self.shared = frozenset(pool for pool in self._pools if any(path.startswith(f"{pool}.") for path in paths))

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may use."""
        return tuple(self._slots)

    def slot_of(self, name: str) -> LoraSlot:
        """Returns the slot of an adapter; raises RequestError for an unknown name."""
        slot = self._slots.get(name)
        if slot is None:
            known = ", ".join(self._slots) or "none"
            message = f"there is no adapter {name!r}{did_you_mean(name, self._slots)}; this engine has {known}"
            raise RequestError(message, "adapter")
        return slot

    def acquire(self, name: str) -> LoraSlot:
        """Returns the slot for one more sequence, until `release`; raises RequestError as `slot_of`."""
        slot = self.slot_of(name)
        slot.users += 1
        return slot

    def release(self, slot: LoraSlot) -> None:
        """Counts one sequence less."""
        slot.users -= 1
        if slot.is_removed and not slot.users:
            self._removed.remove(slot)
            self._free.append(slot.index)

    def check_adapter(self, name: str, adapter: StoredAdapter) -> None:
        """Raises UsageError for an adapter that doesn't fit the model or the rank."""
        strange = sorted(set(adapter.factors) - set(self._pools))
        if strange:
            listed = ", ".join(strange[:5])
            message = f"adapter {name!r} changes {listed}: only projections of the blocks take adapters side by side"
            raise UsageError(message)
        shared = sorted(set(adapter.factors) & self.shared)
        if shared:
            listed = ", ".join(shared[:5])
            message = (
                f"adapter {name!r} changes {listed}, and what the model sees of pictures is one for all adapters; "
                "merge it and serve the merged model, or train it without these"
            )
            raise UsageError(message)
        if adapter.rank > self.rank:
            message = f"adapter {name!r} has rank {adapter.rank}, and this engine takes {self.rank}: raise adapter_rank"
            raise UsageError(message)
        for path, factors in adapter.factors.items():
            for letter, factor in zip("ab", factors, strict=True):
                expected = _without_adapters(self._specs[f"{path}.adapter.lora_{letter}"])
                rank_axis = factor.ndim - 1 if letter == "a" else self._pools[path][1]
                if np.delete(factor.shape, rank_axis).tolist() != expected:
                    message = f"adapter {name!r} was made for other weights: {path} has shape {list(factor.shape)}"
                    raise UsageError(message)
                if not np.isfinite(np.asarray(factor, np.float32)).all():
                    # All adapters share one matmul: zero times NaN would be NaN for requests of another one.
                    message = f"adapter {name!r} holds numbers that aren't finite, in lora_{letter} of {path}"
                    raise UsageError(message)

    def add(self, name: str, adapter: StoredAdapter) -> None:
        """Loads an adapter into a free slot; raises UsageError where there is none, or the name is taken."""
        self.check_adapter(name, adapter)
        if name in self._slots:
            message = f"there is an adapter {name!r} already; remove it first, or give this one another name"
            raise UsageError(message)
        if not self._free:
            message = f"all {self.slots} slots for adapters are taken; remove one, or raise adapter_slots"
            raise UsageError(message)
        slot = self._free.pop()
        self._write(slot, adapter)
        self._generations += 1
        # Not the name alone: pages of an earlier adapter of this name hold other keys.
        self._slots[name] = LoraSlot(slot, f"{self._generations}:{name}", _digest(adapter))

    def remove(self, name: str) -> None:
        """Removes an adapter; sequences that run with it continue, and their slot is free when they have ended."""
        slot = self.slot_of(name)
        del self._slots[name]
        if slot.users:
            slot.is_removed = True
            self._removed.append(slot)
        else:
            self._free.append(slot.index)

    def _write(self, slot: int, adapter: StoredAdapter) -> None:
        for path, (pool, depth) in self._pools.items():
            own: Mapping[str, Any] = {}
            if path in adapter.factors:
                own = _slot_arrays(pool, depth, *adapter.factors[path])
            for name in ("lora_a", "lora_b"):
                at = f"{path}.adapter.{name}"
                axis = self._specs[at].axes.index("adapters")
                # Zeros where this adapter changes nothing, as an earlier one in this slot may have.
                self._arrays[at][(slice(None),) * axis + (slot - 1,)] = own.get(name, 0.0)

    def with_adapters(self, params: Mapping[str, Any], sharding: Any = None) -> Any:
        """Returns the plain model's parameters with those of the pool; `sharding` is for a mesh's programs."""
        arrays = {path: jax.device_put(array, sharding) for path, array in self._arrays.items()}
        return unflatten_paths({**flatten_paths(params), **arrays})

    def replaced(self, unstacked: Any) -> Any:
        """Returns unstacked parameters with the pool's arrays in place of the old ones, on their devices."""
        return _replaced(unstacked, self.model.unstacked(unflatten_paths(self._arrays)))


def _digest(adapter: StoredAdapter) -> bytes:
    """Returns a digest of every number of an adapter and where it goes; its name is no part of it."""
    digest = hashlib.sha256()
    for path, factors in sorted(adapter.factors.items()):
        for factor in factors:
            array = np.ascontiguousarray(factor)
            digest.update(f"{path} {array.dtype} {array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def _slot_arrays(pool: AdapterPool, depth: int, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    if depth == 0:
        return {name: np.asarray(array) for name, array in pool.slot(a, b).items()}
    layers = [_slot_arrays(pool, depth - 1, *one) for one in zip(a, b, strict=True)]
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}


def _without_adapters(spec: ParamSpec) -> list[int]:
    """Returns the shape of one slot without its rank, the axis after the slots."""
    axis = spec.axes.index("adapters")
    return [*spec.shape[:axis], *spec.shape[axis + 2 :]]


def _replaced(whole: Any, part: Any) -> Any:
    if isinstance(part, Mapping):
        return {**whole, **{name: _replaced(whole[name], below) for name, below in part.items()}}
    if isinstance(part, tuple | list):
        return type(whole)(_replaced(w, p) for w, p in zip(whole, part, strict=True))
    return jax.device_put(np.asarray(part, whole.dtype), whole.sharding)
