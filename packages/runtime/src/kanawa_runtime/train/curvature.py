"""The Gauss-Newton-Bartlett estimate of curvature: a gradient on labels that the model draws itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, DrawnTargets, GradientStrategy, LossProgram
from kanawa.contracts.batch import DRAWN_ACCURACY
from kanawa.errors import UsageError

#: Keeps the keys of this pass apart from those of the training pass.
_FOLD = 0x60B


def curvature_of(
    strategy: GradientStrategy, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array
) -> Callable[[], dict[str, jax.Array]]:
    """Returns a function that computes B x gradient² by path, for B drawn labels (Liu et al., arXiv:2305.14342, 2.3).

    It is the diagonal of the Gauss-Newton matrix of the mean loss in expectation. Calling it raises UsageError for a
    loss that can't draw its labels.
    """
    if type(batch) is not Batch:
        message = (
            f"this optimizer measures curvature on labels that the model draws, and a {type(batch).__name__} has none; "
            "choose another one: --modify optimizer:name=adamw"
        )
        raise UsageError(message)

    def estimate() -> dict[str, jax.Array]:
        drawn = DrawnTargets(*batch)
        gradients, outputs = strategy.gradients(loss, params, state, drawn, jax.random.fold_in(key, _FOLD))
        if not any(path.endswith(DRAWN_ACCURACY) for path in outputs.metrics):
            message = (
                "this optimizer measures curvature on labels that the model draws, and the model's loss draws none "
                "(CrossEntropy does); choose another optimizer: --modify optimizer:name=adamw"
            )
            raise UsageError(message)
        count = jnp.sum(batch.loss_weights).astype(jnp.float32)
        return {path: count * jnp.square(leaf.astype(jnp.float32)) for path, leaf in flatten_paths(gradients).items()}

    return estimate
