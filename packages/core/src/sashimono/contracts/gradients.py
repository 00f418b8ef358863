"""How gradients are taken: the trainer never differentiates by itself."""

import abc
from collections.abc import Callable
from typing import Any

import jax

from sashimono.config import Configurable
from sashimono.module.outputs import Outputs

#: (params, state, batch, key) -> Outputs, whose losses make up the training loss.
LossProgram = Callable[[Any, Any, Any, jax.Array], Outputs]


class GradientStrategy(Configurable):
    """Maps a loss program and its arguments to gradients: at once, by microbatches, or through a pipeline."""

    @abc.abstractmethod
    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients in the parameters' dtypes, of `outputs.total_loss()` over the whole batch, and outputs."""
