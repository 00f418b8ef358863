"""The public call: checks shapes, makes the problem, and runs the best kernel."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from kanawa.arrays.axes import LogicalAxes
from kanawa.errors import KernelError
from kanawa.kernels.bad_input import (
    first_bad,
    not_floats,
    not_integers,
    not_positive,
    outside,
    refuse_bad_input,
    values,
)
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.run import choose, run
from kanawa.kernels.sharded import call_split, split_operands
from kanawa.kernels.softmax_cross_entropy.problem import (
    FLAT_AXES,
    SOFTMAX_CROSS_ENTROPY,
    TIED_AXES,
    CrossEntropyProblem,
)


def softmax_cross_entropy(
    hidden: jax.Array,
    weight: jax.Array,
    targets: jax.Array,
    loss_weights: jax.Array,
    *,
    tied: bool = False,
    logit_cap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk_tokens: int | None = None,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Returns (loss sum, weight sum, extra): divide the first two, after adding them up everywhere.

    Reductions run in fp32. `extra` holds weighted sums that aren't differentiated: "nll" (without
    smoothing and z-loss), "z_loss" (included in the loss sum) and "correct" (tokens whose target
    has the highest logit).

    Args:
        hidden: [N, D] or [B, T, D]; keep B and T apart under a mesh, so that both stay split.
        weight: [D, V], or with `tied` an embedding [V, D].
        targets: int [N] or [B, T], in [0, V); anything where the weight is 0.
        loss_weights: float, like targets; 0 for a token that doesn't count.
        logit_cap: logits become cap * tanh(logits / cap).
        z_loss: coefficient of the squared log-sum-exp (PaLM, section 5).
        label_smoothing: share of the target's probability spread evenly.
        chunk_tokens: most tokens whose logits exist at a time on a shard; by default 128 MiB of
            them.

    Differentiable in hidden, weight and loss_weights. Raises KernelError where shapes don't fit
    together.
    """
    # Read only where there are two: anything else doesn't fit.
    width, vocab = (weight.shape[::-1] if tied else weight.shape) if weight.ndim == 2 else (-1, -1)
    fits = hidden.ndim in (2, 3) and hidden.shape[-1] == width
    if not fits or not hidden.shape[:-1] == targets.shape == loss_weights.shape:
        expected = "[V, D]" if tied else "[D, V]"
        message = (
            f"softmax_cross_entropy: hidden {hidden.shape}, weight {weight.shape}, targets "
            f"{targets.shape}, loss_weights {loss_weights.shape}; expected [N, D] or [B, T, D], "
            f"{expected}, and [N] or [B, T] twice"
        )
        raise KernelError(message)
    operands = {"hidden": hidden, "weight": weight, "targets": targets, "loss_weights": jnp.asarray(loss_weights)}
    broken = [f"chunk_tokens {chunk_tokens} must be at least 1"] * (chunk_tokens is not None and chunk_tokens < 1)
    broken += not_positive(logit_cap=logit_cap) + outside(0.0, 1.0, label_smoothing=label_smoothing)
    broken += outside(0.0, math.inf, z_loss=z_loss)
    refuse_bad_input("softmax_cross_entropy", [*broken, *_arrays(operands, vocab)])
    # Compared with numbers of their own dtype, which have to count to the vocabulary's end: of 16 bits they would wrap.
    if targets.dtype.itemsize < 4:
        operands["targets"] = targets.astype(jnp.int32)
    problem = CrossEntropyProblem(
        tokens=math.prod(targets.shape),
        width=width,
        vocab=vocab,
        dtype=str(hidden.dtype),
        weight_dtype=str(weight.dtype),
        tied=tied,
        logit_cap=None if logit_cap is None else float(logit_cap),
        z_loss=float(z_loss),
        label_smoothing=float(label_smoothing),
        chunk_tokens=chunk_tokens,
    )
    axes = {**(FLAT_AXES if hidden.ndim == 2 else {}), **(TIED_AXES if tied else {})}
    sums = _over_vocab(problem, operands, axes) or run(SOFTMAX_CROSS_ENTROPY, problem, operands, axes)
    loss, weight_sum, nll, z_sum, correct = sums
    extra = {"nll": nll, "z_loss": z_sum, "correct": correct}
    return loss, weight_sum, jax.lax.stop_gradient(extra)


def _arrays(operands: dict[str, jax.Array], vocab: int) -> list[str]:
    broken = not_floats(operands, ("hidden", "weight", "loss_weights"))
    broken += not_integers(operands, ("targets",), "targets")
    targets, weights = values(operands["targets"]), values(operands["loss_weights"])
    if broken or targets is None or weights is None:
        return broken
    # A token that doesn't count may have any target.
    bad = (weights != 0) & ((targets < 0) | (targets >= vocab))
    return first_bad("targets", targets, bad, f"its weight isn't 0, and the vocabulary has ids 0 to {vocab - 1}")


def _over_vocab(
    problem: CrossEntropyProblem, operands: dict[str, jax.Array], axes: Mapping[str, LogicalAxes]
) -> tuple[jax.Array, ...] | None:
    """Returns the sums with each shard's logits of its part of the vocabulary only; None where it isn't split."""
    split = split_operands(SOFTMAX_CROSS_ENTROPY, {**SOFTMAX_CROSS_ENTROPY.operand_axes, **axes}, operands)
    vocab_axes = split.assigned.get("vocab", ())
    if not vocab_axes or split.error:
        return None
    problem = dataclasses.replace(problem, vocab_axes=vocab_axes)
    # `run` leaves a kernel that isn't local to the compiler, which would gather whole logits: here any kernel runs on
    # its shard's part of the vocabulary.
    local, selection = choose(SOFTMAX_CROSS_ENTROPY, problem, split, operands)
    sums: tuple[jax.Array, ...]
    sums = call_split(SOFTMAX_CROSS_ENTROPY, split, lambda shard: call(selection.kernel, local, shard), operands)
    return sums
