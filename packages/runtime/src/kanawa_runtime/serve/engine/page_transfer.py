"""Copies pages between device and host, for another engine; compiled before the first request, like all programs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Int
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Program
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.paged_model import is_paged
from kanawa_runtime.serve.engine.programs import Programs, abstract_of
from kanawa_runtime.serve.engine.shapes import smallest_holding
from kanawa_runtime.serve.engine.steps import KVState

#: The shape of one page and the dtype of each array of a cache.
PageShapes = Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
#: Numbers of each array in a fingerprint.
_SAMPLED = 256


class PageTransfer:
    """Reads and writes pages of an engine's cache; arrays are [pages, …] in the order of the cache."""

    def __init__(self, programs: Programs) -> None:
        """Raises UsageError for a model that caches more of a sequence than pages."""
        self._programs = programs
        self._structure: Any
        specs, self._structure = jax.tree.flatten(programs.paged.cache_spec, is_leaf=_is_spec)
        if programs.paged.has_slots or not programs.paged.has_pages:
            message = (
                "this model's prompts can't be transferred: some of its layers have a state of the whole sequence "
                "beside pages; serve it with one engine"
            )
            raise UsageError(message)
        self._paged = [is_paged(spec) for spec in specs]
        self.shapes = [(tuple(spec.shape[1:]), jnp.dtype(spec.dtype)) for spec in specs if is_paged(spec)]
        self._weights = b""

    @property
    def layout(self) -> str:
        """Names the content and form of pages: equal for engines of one model with equal weights."""
        text = json.dumps([[list(shape), dtype.name] for shape, dtype in self.shapes])
        return hashlib.sha256(self._weights + text.encode()).hexdigest()

    def layout_with(self, adapter: bytes | None) -> str:
        """Names the same for pages of an adapter with this digest."""
        return self.layout if adapter is None else hashlib.sha256(self.layout.encode() + adapter).hexdigest()

    def fingerprint_weights(self, params: Any) -> None:
        """Records a fingerprint of parameters as they were trained: a sample of every array."""
        digest = hashlib.sha256()
        for path, leaf in sorted(flatten_paths(params).items()):
            array = np.asarray(leaf).reshape(-1)
            digest.update(f"{path} {array.dtype} {array.size}".encode())
            # Every array, since tuning may change few of them; not every number of it, since there are billions.
            digest.update(np.ascontiguousarray(array[:: max(1, array.size // _SAMPLED)]).view(np.uint8).data)
        self._weights = digest.digest()

    def wanted(self) -> Mapping[tuple[Any, ...], Program]:
        """Returns the programs to compile."""
        programs, wanted = self._programs, {}
        kv, whole, abstract = abstract_of(programs.kv), programs.whole, programs.abstract
        for width in programs.shapes.page_widths:
            pages = abstract((width,))
            arrays = tuple(abstract((width, *shape), dtype) for shape, dtype in self.shapes)
            out: Any = None if whole is None else (whole,) * len(arrays)
            wanted["read", width] = Program(
                f"read {width} pages", self.read, (kv, pages), (), out, programs.environment
            )
            arguments = (kv, pages, arrays, abstract(()), abstract(()))
            out = None if whole is None else programs.shardings
            wanted["write", width] = Program(
                f"write {width} pages", self.write, arguments, (0,), out, programs.environment
            )
        return wanted

    def read(self, kv: KVState, pages: Int[Array, " W"]) -> tuple[Array, ...]:
        """Returns the content of pages, of each paged array."""
        leaves = jax.tree.leaves(kv.caches)
        return tuple(leaf[pages] for leaf, paged in zip(leaves, self._paged, strict=True) if paged)

    def write(
        self, kv: KVState, pages: Int[Array, " W"], arrays: tuple[Array, ...], slot: Array, token: Array
    ) -> KVState:
        """Returns the caches with pages written, those past the end dropped, and a slot's last token set."""
        new = iter(arrays)
        leaves = [
            leaf.at[pages].set(next(new), mode="drop") if paged else leaf
            for leaf, paged in zip(jax.tree.leaves(kv.caches), self._paged, strict=True)
        ]
        return KVState(self._structure.unflatten(leaves), kv.last.at[slot].set(token))

    def read_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        """Returns the content of pages, on the host."""
        at = self._padded(pages, 0)
        arrays = self._programs.compiled["read", len(at)](self._programs.kv, at)
        return [np.asarray(array)[: len(pages)] for array in arrays]

    def check_pages(self, arrays: Sequence[np.ndarray], count: int) -> None:
        """Raises UsageError for arrays that aren't `count` pages of this engine's."""
        actual = [(array.shape, array.dtype) for array in arrays]
        if actual != [((count, *shape), dtype) for shape, dtype in self.shapes]:
            message = f"{len(arrays)} arrays aren't {count} pages of this engine's cache"
            raise UsageError(message)

    def write_pages(self, pages: Sequence[int], arrays: Sequence[np.ndarray], slot: int, token: int) -> None:
        """Writes pages of another engine, and the last token of the slot's sequence."""
        programs = self._programs
        at = self._padded(pages, programs.paged.num_pages)
        room = len(at) - len(pages)
        filled = tuple(np.pad(array, ((0, room), *((0, 0),) * (array.ndim - 1))) for array in arrays)
        program = programs.compiled["write", len(at)]
        programs.kv = program(programs.kv, at, filled, np.int32(slot), np.int32(token))

    def _padded(self, pages: Sequence[int], with_page: int) -> np.ndarray:
        at = np.full(smallest_holding(self._programs.shapes.page_widths, len(pages)), with_page, np.int32)
        at[: len(pages)] = pages
        return at


def _is_spec(node: Any) -> bool:
    return isinstance(node, kn.ParamSpec)
