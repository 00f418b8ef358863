"""Linear recurrences that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from kanawa.kernels.linear_recurrence import LinearRecurrenceProblem, ReferenceLinearRecurrence
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

BASE = LinearRecurrenceProblem(
    batch=2, length=32, num_groups=2, num_heads=4, key_dim=16, value_dim=8, dtype="float32", chunk_length=8
)

#: A row of a 2.7B state-space model's training batch.
TYPICAL = LinearRecurrenceProblem(
    batch=1, length=4096, num_groups=1, num_heads=80, key_dim=128, value_dim=64, dtype="bfloat16"
)

CHANGES: tuple[dict[str, Any], ...] = (
    {"length": 19, "has_segments": True, "has_initial_state": True},
    {"delta": True, "length": 19, "has_segments": True, "has_initial_state": True},
    {"length": 1, "has_initial_state": True, "num_groups": 1},
    {"dtype": "bfloat16", "has_initial_state": True},
    {"dtype": "bfloat16", "has_initial_state": True, "delta": True},
)

FEATURES: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "batch": (2, 1),
    "length": (32, 128, 64, 19, 1),
    # Heads of v, and of q and k.
    "heads": ((4, 2), (4, 4), (4, 1), (1, 1)),
    # Width of keys, and of values.
    "widths": ((16, 8), (64, 64), (128, 128), (128, 64), (24, 40)),
    "delta": (False, True),
    "has_initial_state": (False, True),
    "has_segments": (False, True),
    "chunk_length": (None, 8, 64),
}


def example_operands(problem: LinearRecurrenceProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands: keys of length 1, segments of random length, some padding at the end."""
    p = problem
    dtype = jnp.dtype(p.dtype)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    k = normal(p.batch, p.length, p.num_groups, p.key_dim)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    rows = (p.batch, p.length, p.num_heads)
    operands = {
        "q": (normal(*k.shape) * p.key_dim**-0.5).astype(dtype),
        "k": k.astype(dtype),
        "v": normal(*rows, p.value_dim).astype(dtype),
        "log_decay": -rng.uniform(0.0, 0.5, rows).astype(np.float32),
    }
    if p.delta:
        operands["beta"] = rng.uniform(0.0, 1.0, rows).astype(np.float32)
    if p.has_initial_state:
        operands["initial_state"] = normal(p.batch, p.num_heads, p.key_dim, p.value_dim)
    if p.has_segments:
        starts = rng.uniform(size=(p.batch, p.length)) < 4 / p.length
        ids = 1 + np.cumsum(starts, axis=1)
        ids[:, p.length - rng.integers(0, p.length // 4 + 1) :] = 0
        operands["segment_ids"] = ids.astype(np.int32)
    return operands


EXAMPLES = Examples(
    reference=ReferenceLinearRecurrence(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    space=Space(
        FEATURES, as_fields(LinearRecurrenceProblem, heads=("num_heads", "num_groups"), widths=("key_dim", "value_dim"))
    ),
    typical=TYPICAL,
)
