"""The plain way to take gradients: the whole batch at once."""

from typing import Any

import jax
from kanawa.contracts import GradientStrategy, LossProgram
from kanawa.module import Outputs


class WholeBatch(GradientStrategy):
    """Differentiates the loss of the whole batch in one pass."""

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients and outputs."""

        def total(p: Any) -> tuple[jax.Array, Outputs]:
            outputs = loss(p, state, batch, key)
            return outputs.total_loss(), outputs

        gradients, outputs = jax.grad(total, has_aux=True)(params)
        return gradients, outputs
