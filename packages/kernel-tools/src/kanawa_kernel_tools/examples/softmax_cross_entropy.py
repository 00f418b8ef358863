"""Cross entropies that every kernel is asked, and random operands for any problem."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.operation import Operands
from kanawa.kernels.softmax_cross_entropy import CrossEntropyProblem, ReferenceCrossEntropy, Sums
from kanawa.testing.compare import Examples

from kanawa_kernel_tools.examples.space import Space, as_fields

BASE = CrossEntropyProblem(tokens=96, width=32, vocab=512, dtype="float32", weight_dtype="float32", chunk_tokens=32)

#: A row of an 8B model's training batch.
TYPICAL = CrossEntropyProblem(tokens=4096, width=4096, vocab=128256, dtype="bfloat16", weight_dtype="bfloat16")

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bfloat16", "weight_dtype": "bfloat16"},
    {"tied": True},
    {"tokens": 83},
    {"logit_cap": 3.0},
    {"z_loss": 0.01},
    {"label_smoothing": 0.1},
    {"logit_cap": 3.0, "z_loss": 0.01, "label_smoothing": 0.1, "tied": True},
    {"chunk_tokens": None},
)

FEATURES: dict[str, tuple[Any, ...]] = {
    "dtypes": (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")),
    "tokens": (96, 128, 256, 83, 1),
    "width": (32, 128, 256),
    "vocab": (512, 1024, 333),
    "tied": (False, True),
    "logit_cap": (None, 3.0, 30.0),
    "z_loss": (0.0, 0.01),
    "label_smoothing": (0.0, 0.1),
    "chunk_tokens": (32, None, 50),
}


def example_operands(problem: CrossEntropyProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random operands; about one token in four has weight 0."""
    p = problem
    shape = (p.vocab, p.width) if p.tied else (p.width, p.vocab)
    weight = rng.standard_normal(shape) * p.width**-0.5
    draws = rng.uniform(size=p.tokens).astype(np.float32)
    return {
        "hidden": rng.standard_normal((p.tokens, p.width)).astype(jnp.dtype(p.dtype)),
        "weight": weight.astype(jnp.dtype(p.weight_dtype)),
        "targets": rng.integers(0, p.vocab, p.tokens).astype(np.int32),
        "loss_weights": np.where(draws < 0.25, np.float32(0), draws),
    }


def _specified(problem: CrossEntropyProblem, operands: Operands, out: Sums) -> Sums:
    """Returns the sums with those that carry no gradient cut off, as the public call does."""
    cut = jax.lax.stop_gradient
    return out._replace(nll=cut(out.nll), z_loss=cut(out.z_loss), correct=cut(out.correct))


EXAMPLES = Examples(
    reference=ReferenceCrossEntropy(),
    problems=tuple(dataclasses.replace(BASE, **change) for change in CHANGES),
    operands=example_operands,
    typical=TYPICAL,
    specified=_specified,
    space=Space(FEATURES, as_fields(CrossEntropyProblem, dtypes=("dtype", "weight_dtype"))),
)
