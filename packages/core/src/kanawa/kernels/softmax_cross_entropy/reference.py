"""softmax_cross_entropy.any.reference: all logits at once, in plain JAX."""

from typing import ClassVar

from kanawa.kernels.operation import Operands, UniversalKernel
from kanawa.kernels.softmax_cross_entropy.losses import (
    Sums,
    project,
    token_losses,
    weighted_sums,
)
from kanawa.kernels.softmax_cross_entropy.problem import CrossEntropyProblem


class ReferenceCrossEntropy(UniversalKernel):
    """Materialises the logits [tokens, vocab] in fp32. Supports every problem."""

    name: ClassVar[str] = "softmax_cross_entropy.any.reference"
    operation: ClassVar[str] = "softmax_cross_entropy"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: CrossEntropyProblem, operands: Operands) -> tuple[Sums, None]:
        """Returns (sums over tokens, None)."""
        logits = project(problem, operands["hidden"], operands["weight"])
        losses = token_losses(problem, logits, operands["targets"], gathered=not problem.vocab_axes)
        return weighted_sums(losses, operands["loss_weights"]), None
