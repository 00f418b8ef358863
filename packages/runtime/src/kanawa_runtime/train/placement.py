"""From a host's rows to global arrays: which rows this process feeds, and how they become one batch."""

from typing import Any, TypeVar

import jax
import numpy as np
from kanawa.contracts import Batch, DataSource, RolloutBatch

B = TypeVar("B", bound=Batch | RolloutBatch)


def local_rows(abstract: Any) -> range:
    """Returns the rows of the global batch that this process's devices hold; all of them without a mesh.

    They are contiguous, because a mesh keeps each process's devices together along the batch.
    """
    rows = abstract.input_ids.shape[0]
    sharding = abstract.input_ids.sharding
    if sharding is None:
        return range(rows)
    slices = sharding.addressable_devices_indices_map(abstract.input_ids.shape).values()
    spans = [index[0].indices(rows) for index in slices]
    return range(min(start for start, _, _ in spans), max(stop for _, stop, _ in spans))


def global_batch(local: B, abstract: B, rows: range) -> B:
    """Returns the global arrays of a batch whose rows `rows` are at hand; NumPy arrays pass through without a mesh."""

    def place(array: Any, spec: Any) -> Any:
        if spec.sharding is None:
            return array

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(spec.shape[0])
            own: np.ndarray = array[start - rows.start : stop - rows.start, *index[1:]]
            return own

        return jax.make_array_from_callback(spec.shape, spec.sharding, part)

    kind: Any = type(abstract)
    whole: B = kind(*(None if s is None else place(a, s) for a, s in zip(local, abstract, strict=True)))
    return whole


def check_vocabulary(source: DataSource, vocab_size: int) -> str | None:
    """Returns what is wrong when the data has ids the model has no row for, else None."""
    if source.vocab_size <= vocab_size:
        return None
    return (
        f"data has {source.vocab_size} token ids, but model.vocab_size is {vocab_size}; "
        f"set model.vocab_size={source.vocab_size}, or a tokenizer with fewer"
    )
