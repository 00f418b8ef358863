"""Tensors of a kernel: storage in one of the memories, and tiles and access patterns into it."""

import math
from typing import Any

import numpy as np

from nki._machine import FIRST_PARTITIONS, PARTITIONS, PSUM_BANK_BYTES, machine, require

ON_CHIP = ("sbuf", "psum")


class Register:
    """An integer that the device computes: the index of a device loop, or one that was loaded. Python can't read it."""

    def __init__(self, value: int = 0) -> None:
        self.value = int(value)


class Slice:
    """What `nl.ds` makes: `size` elements from `start` on."""

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size


class Storage:
    """Memory of one tensor: its elements, and which of them have been written."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, space: str, *, writable: bool = True) -> None:
        self.space, self.writable = space, writable
        self.values = np.zeros(shape, dtype)
        self.written = np.zeros(shape, bool)
        self.loop_depth = machine().loop_depth
        if space not in ON_CHIP:
            return
        require(len(shape) >= 2, f"a tile in {space} has partitions and a free axis, not shape {shape}")
        require(shape[0] <= PARTITIONS, f"{shape[0]} partitions of shape {shape}; there are {PARTITIONS}")
        size = math.prod(shape[1:]) * self.values.dtype.itemsize
        if space == "psum":
            require(size <= PSUM_BANK_BYTES, f"a PSUM tile of {size} bytes a partition; a bank has {PSUM_BANK_BYTES}")
        machine().take(self, space, size)


class Tensor:
    """A view of storage: whole, sliced, or by an access pattern (`index`: flat positions in the storage)."""

    def __init__(
        self,
        storage: Storage,
        values: np.ndarray | None = None,
        written: np.ndarray | None = None,
        *,
        start: int = 0,
        index: np.ndarray | None = None,
    ) -> None:
        self.storage, self.index, self.start = storage, index, start
        self.whole = values is None and index is None
        self.values = storage.values if values is None else values
        self.written = storage.written if written is None else written

    @property
    def space(self) -> str:
        """Which memory it lies in."""
        return self.storage.space

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.values.shape if self.index is None else self.index.shape

    @property
    def dtype(self) -> Any:
        """Its elements' type."""
        return self.storage.values.dtype

    @property
    def free_size(self) -> int:
        """Elements a partition."""
        return math.prod(self.shape[1:])

    def __getitem__(self, key: Any) -> "Tensor":
        """Returns a slice; outside of the tensor there is nothing, unlike in NumPy."""
        require(self.index is None, "an access pattern can't be indexed")
        keys = key if isinstance(key, tuple) else (key,)
        require(len(keys) <= len(self.shape), f"{len(keys)} indices of shape {self.shape}")
        exact, start = [], self.start
        for axis, (one, size) in enumerate(zip(keys, self.shape, strict=False)):
            if isinstance(one, Slice):
                one = slice(one.start, one.start + one.size)
            if isinstance(one, slice):
                first, end = one.start or 0, size if one.stop is None else one.stop
                require(one.step in (None, 1), f"step {one.step}: take every element, or use an access pattern")
                require(0 <= first < end <= size, f"[{first}:{end}] of axis {axis} of shape {self.shape}")
                exact.append(slice(first, end))
                start += first if axis == 0 else 0
            else:
                require(isinstance(one, int), f"index {one!r}: a device's number goes into ap(scalar_offset=…)")
                require(0 <= one < size, f"index {one} of axis {axis} of shape {self.shape}")
                require(axis > 0 or self.space not in ON_CHIP, "a partition is taken by a slice, not by an index")
                exact.append(one)
        return Tensor(self.storage, self.values[tuple(exact)], self.written[tuple(exact)], start=start)

    def reshape(self, shape: tuple[int, ...]) -> "Tensor":
        """Returns the same elements under another shape; of a whole tensor in HBM only."""
        require(self.whole and self.space not in ON_CHIP, "only a whole tensor in HBM is reshaped")
        return Tensor(self.storage, self.values.reshape(shape), self.written.reshape(shape))

    def ap(
        self,
        pattern: Any,
        offset: int = 0,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
    ) -> "Tensor":
        """Returns the access pattern of [step, number] pairs; offsets count elements of `indirect_dim`."""
        require(self.whole, "an access pattern is of a whole tensor")
        require(scalar_offset is None or vector_offset is None, "a scalar and a vector offset exclude each other")
        shape = self.storage.values.shape
        free = math.prod(shape[1:])
        if self.space in ON_CHIP:
            require(pattern[0][0] == free, f"partition step {pattern[0][0]} of a tile with {free} elements a partition")
        index = np.full([number for _, number in pattern], offset, np.int64)
        for axis, (step, number) in enumerate(pattern):
            along = [1] * len(pattern)
            along[axis] = number
            index += (step * np.arange(number)).reshape(along)
        stride = math.prod(shape[indirect_dim + 1 :])
        if scalar_offset is not None:
            index += stride * _scalar(scalar_offset)
        if vector_offset is not None:
            require(self.space not in ON_CHIP, "a vector of offsets addresses HBM")
            require(vector_offset.space == "sbuf", "a vector of offsets lies in SBUF")
            require(vector_offset.shape == (index.shape[0], 1), f"offsets {vector_offset.shape} for {index.shape}")
            rows = vector_offset.read().astype(np.int64).reshape(-1, *[1] * (index.ndim - 1))
            # Each partition's row is the one its offset names: the first axis' own steps don't count.
            index += stride * rows - pattern[0][0] * np.arange(index.shape[0]).reshape(rows.shape)
        return Tensor(self.storage, index=index)

    def read(self, *, skip: bool = False) -> np.ndarray:
        """Returns its elements; raises if any was never written or lies outside. `skip`: zeros outside."""
        if self.index is None:
            require(bool(self.written.all()), f"reads what was never written, {self._where()}")
            return self.values
        inside = self._inside(skip)
        at = np.where(inside, self.index, 0)
        values, written = self.storage.values.reshape(-1)[at], self.storage.written.reshape(-1)[at]
        require(bool((written | ~inside).all()), f"reads what was never written, {self._where()}")
        return np.where(inside, values, np.zeros((), values.dtype))

    def write(self, values: np.ndarray, *, skip: bool = False) -> None:
        """Puts elements in, rounded to its dtype; raises outside. `skip`: those outside go nowhere."""
        require(self.storage.writable, "writes to an input of the kernel")
        require(values.shape == self.shape, f"writes {values.shape} to {self.shape}")
        rounded = values.astype(self.dtype)
        if self.index is None:
            self.values[...] = rounded
            self.written[...] = True
            return
        inside = self._inside(skip)
        at = self.index[inside]
        self.storage.values.reshape(-1)[at] = rounded[inside]
        self.storage.written.reshape(-1)[at] = True

    def inside(self) -> np.ndarray:
        """Returns which elements of an access pattern lie in the tensor."""
        if self.index is None:
            return np.ones(self.shape, bool)
        return (self.index >= 0) & (self.index < self.storage.values.size)

    def _inside(self, skip: bool) -> np.ndarray:
        inside = self.inside()
        require(skip or bool(inside.all()), f"access outside of the tensor, {self._where()}")
        return inside

    def on_chip(self, what: str) -> "Tensor":
        """Returns itself, checked to be what an engine can reach."""
        require(self.space in ON_CHIP, f"{what} lies in {self.space}; engines reach SBUF and PSUM")
        start = self.start
        if self.index is not None:
            start = int(self.index.reshape(-1)[0]) // max(1, math.prod(self.storage.values.shape[1:]))
        require(start in FIRST_PARTITIONS, f"{what} begins at partition {start}; engines begin at 0, 32, 64 or 96")
        return self

    def _where(self) -> str:
        return f"shape {self.shape} of {self.storage.values.shape} in {self.space}"


def _scalar(offset: Any) -> int:
    if isinstance(offset, Register):
        return offset.value
    require(isinstance(offset, Tensor), f"scalar_offset {offset!r}: a register or a [1, 1] tile; else use offset")
    require(offset.shape == (1, 1) and offset.space == "sbuf", f"scalar_offset of shape {offset.shape}")
    return int(offset.read()[0, 0])
