"""A cache after a sequence that broke: NaN in every place that no row owns."""

from typing import Any

import numpy as np
from kanawa.kernels.attention.problem import AttentionProblem


def broken_rest(problem: AttentionProblem, operands: dict[str, Any]) -> dict[str, Any]:
    """Returns k and v, of their own shapes and dtypes, that are NaN where no row has a token."""
    size = problem.page_size or problem.kv_length
    table = operands.get("page_table", np.arange(operands["k"].shape[0])[:, None])
    owned = np.zeros(operands["k"].shape[:2], bool)
    for row, length in zip(table, operands["kv_lengths"], strict=True):
        at = np.arange(length)
        owned[row[at // size], at % size] = True
    broken = {name: np.where(owned[..., None, None], operands[name], np.nan) for name in ("k", "v")}
    return {name: x.astype(operands[name].dtype) for name, x in broken.items()}
