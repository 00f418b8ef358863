"""What a parallelism contributes: tables from logical to mesh axes, and how gradients are taken."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax

from kanawa.arrays.plan import Distributed
from kanawa.arrays.rules import Rules
from kanawa.arrays.tree import merge_trees
from kanawa.config import Configurable
from kanawa.module.functional import functional
from kanawa.module.module import Module
from kanawa.module.outputs import Outputs


class Strategy(Configurable):
    """One parallelism, chosen in `execution.strategies`; several compose in the order they are listed."""

    @abc.abstractmethod
    def param_rules(self) -> Rules:
        """Returns rules for parameters and everything shaped like them."""

    @abc.abstractmethod
    def activation_rules(self) -> Rules:
        """Returns rules for activations, batches and caches."""

    def distributed(self) -> tuple[Distributed, ...]:
        """Returns what runs operations over shards where rules alone can't: none, by default."""
        return ()


#: (params, state, batch, key) -> Outputs, whose losses make up the training loss.
LossProgram = Callable[[Any, Any, Any, jax.Array], Outputs]


@dataclasses.dataclass(frozen=True)
class ModelLoss:
    """The loss program of a model: its forward pass in training. A strategy that knows models can take it apart.

    `fixed` are parameters that aren't trained: constants, for which no gradient is computed, summed or sent. `emit` are
    the paths of what the outputs hold besides, as in `functional`.
    """

    model: Module
    fixed: Mapping[str, Any] | None = None
    emit: tuple[str, ...] = ()
    #: What every loss term is multiplied by, fp32 scalar; None: nothing.
    scale: jax.Array | None = None

    def __call__(self, params: Any, state: Any, batch: Any, key: jax.Array) -> Outputs:
        """Returns the outputs of the training pass with these trained parameters."""
        _, outputs = functional(self.model)(self.complete(params), state, batch, key=key, train=True, emit=self.emit)
        return outputs if self.scale is None else outputs.scaled(self.scale)

    def complete(self, params: Any) -> Any:
        """Returns trained parameters together with the fixed ones."""
        return params if not self.fixed else merge_trees(self.fixed, params)


class GradientStrategy(Configurable):
    """Maps a loss program and its arguments to gradients: at once, by microbatches, or through a pipeline."""

    #: Whether it runs the layers of the model's stack itself, so that cuts and idle time are its own, not the stack's.
    replaces_stack: ClassVar[bool] = False
    #: Whether its gradients are plainly those of `outputs.total_loss()`, summed over the parts of `cuts`: a step that
    #: computes forward and backward passes apart may then take them by itself.
    is_plain_sum: ClassVar[bool] = False

    def cuts(self) -> Mapping[str, int]:
        """Returns {own config field: parts} by which a batch's rows are cut before a model sees them; empty: none."""
        return {}

    def idle_share(self, stages: int, stack: Configurable.Config) -> float:
        """Returns the part of a step in which one of `stages` pipeline stages of a stack's config has nothing to do."""
        del stages, stack
        return 0.0

    @abc.abstractmethod
    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients in the parameters' dtypes, of `outputs.total_loss()` over the whole batch, and outputs."""
