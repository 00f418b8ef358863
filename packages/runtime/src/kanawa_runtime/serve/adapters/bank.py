"""A model with room for adapters, and the table of who sits where."""

import dataclasses
import hashlib
from collections.abc import Mapping
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
class Seat:
    """A slot in use: `users` are the sequences that run with it; a removed one is free when they have ended."""

    slot: int
    salt: str
    #: Tells what it holds from what others hold, in any process.
    digest: bytes
    users: int = 0
    is_removed: bool = False


class Bank:
    """The adapters of one engine, by name; slot 0 is none. Arrays are the host's: nothing here compiles.

    Used on the engine's thread, but for `seat_of`, which only reads.
    """

    def __init__(self, model: CausalLM, slots: int, rank: int) -> None:
        """Raises UsageError where the model has no projections that could have adapters."""
        modifier = component("modifiers", "lora-pool").Config(slots=slots, rank=rank).build()
        #: The same model with empty banks; its parameters are the model's and `arrays`.
        self.model: CausalLM = modifier(model.config.clone()).build()
        self._specs: Mapping[str, ParamSpec] = flatten_paths(param_specs(self.model))
        self._banks: Mapping[str, tuple[AdapterPool, int]] = adapter_pools(self.model)
        prefixes = tuple(f"{path}.adapter." for path in self._banks)
        self._arrays = {
            path: np.zeros(spec.shape, spec.dtype) for path, spec in self._specs.items() if path.startswith(prefixes)
        }
        self._seats: dict[str, Seat] = {}
        self._leaving: list[Seat] = []
        self._free = list(range(slots, 0, -1))
        self._generations = 0
        self.slots, self.rank = slots, rank

    @property
    def names(self) -> tuple[str, ...]:
        """Those that requests may name."""
        return tuple(self._seats)

    def seat_of(self, name: str) -> Seat:
        """Returns where an adapter sits; raises RequestError for an unknown name."""
        seat = self._seats.get(name)
        if seat is None:
            known = ", ".join(self._seats) or "none"
            message = f"there is no adapter {name!r}{did_you_mean(name, self._seats)}; this engine has {known}"
            raise RequestError(message, "adapter")
        return seat

    def take(self, name: str) -> Seat:
        """Returns the seat of one more sequence; give it back with `leave`. Raises RequestError as `seat_of`."""
        seat = self.seat_of(name)
        seat.users += 1
        return seat

    def leave(self, seat: Seat) -> None:
        """Counts one sequence less."""
        seat.users -= 1
        if seat.is_removed and not seat.users:
            self._leaving.remove(seat)
            self._free.append(seat.slot)

    def check(self, name: str, adapter: StoredAdapter) -> None:
        """Raises UsageError for an adapter that has no place here, whatever sits here now."""
        strange = sorted(set(adapter.factors) - set(self._banks))
        if strange:
            listed = ", ".join(strange[:5])
            message = f"adapter {name!r} changes {listed}: only projections of the blocks take adapters side by side"
            raise UsageError(message)
        if adapter.rank > self.rank:
            message = (
                f"adapter {name!r} has rank {adapter.rank}, and this engine room for {self.rank}: raise adapter_rank"
            )
            raise UsageError(message)
        for path, factors in adapter.factors.items():
            for half, factor in zip("ab", factors, strict=True):
                expected = _without_adapters(self._specs[f"{path}.adapter.lora_{half}"])
                rank_axis = factor.ndim - 1 if half == "a" else self._banks[path][1]
                if np.delete(factor.shape, rank_axis).tolist() != expected:
                    message = f"adapter {name!r} was made for other weights: {path} has shape {list(factor.shape)}"
                    raise UsageError(message)
                if not np.isfinite(np.asarray(factor, np.float32)).all():
                    # All adapters' products are of one matrix: zero times NaN would be NaN for who uses another one.
                    message = f"adapter {name!r} holds numbers that aren't finite, in lora_{half} of {path}"
                    raise UsageError(message)

    def add(self, name: str, adapter: StoredAdapter) -> None:
        """Puts an adapter in a free slot; raises UsageError where there is none, or the name is taken."""
        self.check(name, adapter)
        if name in self._seats:
            message = f"there is an adapter {name!r} already; remove it first, or give this one another name"
            raise UsageError(message)
        if not self._free:
            message = f"all {self.slots} slots for adapters are taken; remove one, or raise adapter_slots"
            raise UsageError(message)
        slot = self._free.pop()
        self._write(slot, adapter)
        self._generations += 1
        # Not the name alone: pages that an earlier adapter of this name wrote hold another one's keys.
        self._seats[name] = Seat(slot, f"{self._generations}:{name}", _digest(adapter))

    def remove(self, name: str) -> None:
        """Takes a name away; sequences that run with it go on, and their slot is free when they have ended."""
        seat = self.seat_of(name)
        del self._seats[name]
        if seat.users:
            seat.is_removed = True
            self._leaving.append(seat)
        else:
            self._free.append(seat.slot)

    def _write(self, slot: int, adapter: StoredAdapter) -> None:
        for path, (bank, depth) in self._banks.items():
            own: Mapping[str, Any] = {}
            if path in adapter.factors:
                own = _slot_arrays(bank, depth, *adapter.factors[path])
            for name in ("lora_a", "lora_b"):
                at = f"{path}.adapter.{name}"
                axis = self._specs[at].axes.index("adapters")
                # Zeros where this one changes nothing: what sat here before may have.
                self._arrays[at][(slice(None),) * axis + (slot - 1,)] = own.get(name, 0.0)

    def with_banks(self, params: Mapping[str, Any], sharding: Any = None) -> Any:
        """Returns the plain model's parameters with the banks as they are; `sharding` is for a mesh's programs."""
        banks = {path: jax.device_put(array, sharding) for path, array in self._arrays.items()}
        return unflatten_paths({**flatten_paths(params), **banks})

    def replaced(self, unstacked: Any) -> Any:
        """Returns unstacked parameters with the banks' arrays put in place of those there, on their devices."""
        return _laid_over(unstacked, self.model.unstacked(unflatten_paths(self._arrays)))


def _digest(adapter: StoredAdapter) -> bytes:
    """Returns a digest of every number of an adapter and where it goes; its name is no part of it."""
    digest = hashlib.sha256()
    for path, factors in sorted(adapter.factors.items()):
        for factor in factors:
            array = np.ascontiguousarray(factor)
            digest.update(f"{path} {array.dtype} {array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8))
    return digest.digest()


def _slot_arrays(bank: AdapterPool, depth: int, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    if depth == 0:
        return {name: np.asarray(array) for name, array in bank.slot(a, b).items()}
    layers = [_slot_arrays(bank, depth - 1, *one) for one in zip(a, b, strict=True)]
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}


def _without_adapters(spec: ParamSpec) -> list[int]:
    """Returns the shape of one slot without its rank, which stands right behind the slots."""
    axis = spec.axes.index("adapters")
    return [*spec.shape[:axis], *spec.shape[axis + 2 :]]


def _laid_over(whole: Any, part: Any) -> Any:
    if isinstance(part, Mapping):
        return {**whole, **{name: _laid_over(whole[name], below) for name, below in part.items()}}
    if isinstance(part, tuple | list):
        return type(whole)(_laid_over(w, p) for w, p in zip(whole, part, strict=True))
    return jax.device_put(np.asarray(part, whole.dtype), whole.sharding)
