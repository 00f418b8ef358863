"""softmax_cross_entropy.any.reference: all logits at once, in plain JAX."""

from typing import Any, ClassVar

from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.softmax_cross_entropy.losses import (
    Sums,
    project,
    token_losses,
    weighted_sums,
)
from kanawa.kernels.softmax_cross_entropy.problem import CrossEntropyProblem
from kanawa.kernels.verdict import SUPPORTED, Verdict


class ReferenceCrossEntropy(Kernel):
    """Materialises the logits [tokens, vocab] in fp32. Supports every problem."""

    name: ClassVar[str] = "softmax_cross_entropy.any.reference"
    operation: ClassVar[str] = "softmax_cross_entropy"
    autodiff: ClassVar[bool] = True

    def supports(self, problem: CrossEntropyProblem, device: Any) -> Verdict:
        """Returns support, always."""
        return SUPPORTED

    def forward(self, problem: CrossEntropyProblem, operands: Operands) -> tuple[Sums, None]:
        """Returns (sums over tokens, None)."""
        logits = project(problem, operands["hidden"], operands["weight"])
        losses = token_losses(problem, logits, operands["targets"], gathered=not problem.vocab_axes)
        return weighted_sums(losses, operands["loss_weights"]), None
