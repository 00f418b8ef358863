"""Cross entropy of a vocabulary projection, from hidden states, without keeping all logits."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
from kanawa.kernels.matmul import matmul
from kanawa.kernels.operation import SUMMED, Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import choose, run
from kanawa.kernels.sharded import call_split, split_operands

#: Tokens are split by hand, so that the weight's gradient is added up over shards once and not once
#: a chunk; the vocabulary too, so that no shard ever holds all logits of a token. No fused kernel is expected.
SOFTMAX_CROSS_ENTROPY = Operation(
    name="softmax_cross_entropy",
    operand_axes={
        "hidden": ("batch", "length", None),
        "weight": (None, "vocab"),
        "targets": ("batch", "length"),
        "loss_weights": ("batch", "length"),
    },
    output_axes=(SUMMED,) * 5,
    manual_axes=("batch", "length", "vocab"),
    dominant="vocab",
    expects_fused=False,
)

#: Where tokens come as one dimension.
FLAT_AXES: dict[str, LogicalAxes] = {
    "hidden": ("batch", None),
    "targets": ("batch",),
    "loss_weights": ("batch",),
}

#: Where the weight is an embedding.
TIED_AXES: dict[str, LogicalAxes] = {"weight": ("vocab", None)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropyProblem(Problem):
    """A projection of `tokens` rows to `vocab` logits, and the loss against one target each.

    Attributes:
        tied: the weight is an embedding [vocab, width], else [width, vocab].
        logit_cap: logits become cap * tanh(logits / cap); None for no cap.
        z_loss: coefficient of the squared log-sum-exp.
        label_smoothing: share of the target's probability spread evenly over the vocabulary.
        chunk_tokens: most tokens whose logits exist at a time on a shard; None leaves it to the
            kernel.
        vocab_axes: manual mesh axes over which the vocabulary is split: `vocab` then counts this
            shard's part, the next in order on the next shard, and a token's losses need a sum over them.
    """

    tokens: int
    width: int
    vocab: int
    dtype: str
    weight_dtype: str
    tied: bool = False
    logit_cap: float | None = None
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None
    vocab_axes: tuple[str, ...] = ()

    @property
    def matmul_flops(self) -> float:
        """FLOPs of the projection to this shard's part of the vocabulary."""
        return 2.0 * self.tokens * self.width * self.vocab

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8192,4096] vocab 128256 tied z_loss=0.0001"."""
        parts = [f"{self.dtype}[{self.tokens},{self.width}] vocab {self.vocab}"]
        parts += [f"weight {self.weight_dtype}"] * (self.weight_dtype != self.dtype)
        parts += ["tied"] * self.tied
        parts += [f"over {'x'.join(self.vocab_axes)}"] * bool(self.vocab_axes)
        for name in ("logit_cap", "z_loss", "label_smoothing", "chunk_tokens"):
            value = getattr(self, name)
            if value:
                parts.append(f"{name}={value:g}")
        return " ".join(parts)

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "CrossEntropyProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        vocab = operand_shapes["weight"][0 if self.tied else 1]
        return dataclasses.replace(self, tokens=math.prod(operand_shapes["targets"]), vocab=vocab)

    def result(self, operands: Operands) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Returns five fp32 scalars."""
        del operands
        return (jax.ShapeDtypeStruct((), wide(self.dtype)),) * 5


class TokenLosses(NamedTuple):
    """Per token, fp32: what is minimised, its parts, and whether the argmax was right."""

    loss: jax.Array
    nll: jax.Array
    z_loss: jax.Array
    correct: jax.Array
    log_sum_exp: jax.Array


class Sums(NamedTuple):
    """Weighted sums over tokens, fp32 scalars."""

    loss: jax.Array
    weight: jax.Array
    nll: jax.Array
    z_loss: jax.Array
    correct: jax.Array


def project(problem: CrossEntropyProblem, hidden: jax.Array, weight: jax.Array) -> jax.Array:
    """Returns capped logits [..., vocab] in fp32."""
    logits = _logits(problem.tied, hidden, weight)
    if problem.logit_cap is not None:
        logits = problem.logit_cap * jnp.tanh(logits / problem.logit_cap)
    return logits


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logits(tied: bool, hidden: jax.Array, weight: jax.Array) -> jax.Array:
    """Returns hidden [..., width] times the weight, fp32 [..., vocab]."""
    return matmul(hidden, weight, outputs_first=tied, dtype=wide(hidden.dtype), logits=True, own_gradients=False)


def _logits_forward(tied: bool, hidden: jax.Array, weight: jax.Array) -> tuple[jax.Array, Any]:
    return _logits(tied, hidden, weight), (hidden, weight)


def _logits_backward(tied: bool, saved: tuple[jax.Array, jax.Array], dlogits: jax.Array) -> tuple[jax.Array, ...]:
    hidden, weight = saved
    dhidden, dweight = logit_gradients(tied, hidden, weight, dlogits)
    return dhidden.astype(hidden.dtype), dweight.astype(weight.dtype)


def logit_gradients(
    tied: bool, hidden: jax.Array, weight: jax.Array, dlogits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the cotangents of hidden and weight, accumulated and returned in fp32, from the logits' [..., vocab]."""
    # JAX's own rule multiplies with the cotangent first. A compiler may then transpose it to suit its matmuls, a third
    # array of logits at the peak of a step; here it transposes the hidden states.
    pair = (dlogits, hidden) if tied else (hidden, dlogits)
    dtype = wide(hidden.dtype)
    dhidden = matmul(dlogits, weight, outputs_first=not tied, dtype=dtype, logits=True, own_gradients=False)
    return dhidden, matmul(*pair, hidden.ndim - 1, inner_first=True, dtype=dtype, logits=True, own_gradients=False)


_logits.defvjp(_logits_forward, _logits_backward)


def token_losses(
    problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array, *, gathered: bool = False
) -> TokenLosses:
    """Returns each token's losses from logits [..., vocab] and targets [...].

    `gathered` picks the targets' logits by index, for logits whose vocabulary is whole.
    """
    # Subtracted, so that exp can't overflow. It cancels out, so no gradient goes through it; pmax has none.
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    if problem.vocab_axes:
        top = jax.lax.pmax(top, problem.vocab_axes)
    log_sum_exp = top + jnp.log(_sum_vocab(problem, jnp.exp(logits - top[..., None])))
    if gathered:
        chosen = _gathered(problem, logits, targets)
    else:
        # A sum over a comparison, not a gather: it stays in place where the vocabulary is split.
        chosen = _sum_vocab(problem, jnp.where(is_target(problem, logits, targets), logits, 0.0))
    nll = log_sum_exp - chosen
    loss = nll
    if problem.label_smoothing:
        spread = log_sum_exp - _sum_vocab(problem, logits) / whole_vocab(problem)
        loss = (1 - problem.label_smoothing) * nll + problem.label_smoothing * spread
    z_loss = jnp.zeros_like(nll)
    if problem.z_loss:
        z_loss = problem.z_loss * jnp.square(log_sum_exp)
        loss = loss + z_loss
    # The target's own logit is the maximum: no argmax, which across shards of the vocabulary would need indices.
    return TokenLosses(loss, nll, z_loss, (chosen >= top).astype(logits.dtype), log_sum_exp)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the target's logit of each token; some other one of a target that is out of range."""
    # Clipped: such tokens have weight 0, which would not undo a NaN.
    return jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="clip")[..., 0]


def _gathered_forward(
    problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gathered(problem, logits, targets), targets


def _gathered_backward(
    problem: CrossEntropyProblem, targets: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, np.ndarray]:
    # A comparison again, which joins the rest of the logits' gradient in one pass, where a scatter takes its own.
    index = jax.lax.broadcasted_iota(targets.dtype, (*targets.shape, problem.vocab), targets.ndim)
    dlogits = jnp.where(index == targets[..., None], cotangent[..., None], jnp.zeros((), cotangent.dtype))
    return dlogits, np.zeros(targets.shape, jax.dtypes.float0)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def weighted_sums(losses: TokenLosses, loss_weights: jax.Array) -> Sums:
    """Returns the sums of losses times weights."""
    weights = loss_weights.astype(losses.loss.dtype)
    return Sums(
        loss=jnp.sum(losses.loss * weights),
        weight=jnp.sum(weights),
        nll=jnp.sum(losses.nll * weights),
        z_loss=jnp.sum(losses.z_loss * weights),
        correct=jnp.sum(losses.correct * weights),
    )


def is_target(problem: CrossEntropyProblem, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns bool [..., vocab], true at each token's target."""
    index = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    if problem.vocab_axes:
        index = index + (jax.lax.axis_index(problem.vocab_axes) * problem.vocab).astype(index.dtype)
    return index == targets[..., None]


def whole_vocab(problem: CrossEntropyProblem) -> int:
    """Returns the vocabulary over all shards."""
    return problem.vocab * math.prod(jax.lax.axis_size(name) for name in problem.vocab_axes)


def _sum_vocab(problem: CrossEntropyProblem, x: jax.Array) -> jax.Array:
    total = jnp.sum(x, axis=-1)
    return jax.lax.psum(total, problem.vocab_axes) if problem.vocab_axes else total


class ReferenceCrossEntropy(UniversalKernel):
    """softmax_cross_entropy.any.reference: all logits at once, [tokens, vocab] in fp32. Supports every problem."""

    name: ClassVar[str] = "softmax_cross_entropy.any.reference"
    operation: ClassVar[str] = "softmax_cross_entropy"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: CrossEntropyProblem, operands: Operands) -> tuple[Sums, None]:
        """Returns (sums over tokens, None)."""
        logits = project(problem, operands["hidden"], operands["weight"])
        losses = token_losses(problem, logits, operands["targets"], gathered=not problem.vocab_axes)
        return weighted_sums(losses, operands["loss_weights"]), None


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
        chunk_tokens: most tokens whose logits exist at a time on a shard; by default as many as keep the
            device's matmuls busy, at most a sixteenth of its memory.

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
    refuse_bad_input("softmax_cross_entropy", [*broken, *_check_arrays(operands, vocab)])
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
    sums = _call_over_vocab(problem, operands, axes) or run(SOFTMAX_CROSS_ENTROPY, problem, operands, axes)
    loss, _, nll, z_sum, correct = sums
    # Not the kernel's own sum: what asks for the weights of a batch alone, as accumulation does, then needs no model.
    weight_sum = jnp.sum(loss_weights, dtype=jnp.float32)
    extra = {"nll": nll, "z_loss": z_sum, "correct": correct}
    return loss, weight_sum, jax.lax.stop_gradient(extra)


def _check_arrays(operands: dict[str, jax.Array], vocab: int) -> list[str]:
    broken = not_floats(operands, ("hidden", "weight", "loss_weights"))
    broken += not_integers(operands, ("targets",), "targets")
    targets, weights = values(operands["targets"]), values(operands["loss_weights"])
    if broken or targets is None or weights is None:
        return broken
    # A token that doesn't count may have any target.
    bad = (weights != 0) & ((targets < 0) | (targets >= vocab))
    return first_bad("targets", targets, bad, f"its weight isn't 0, and the vocabulary has ids 0 to {vocab - 1}")


def _call_over_vocab(
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
