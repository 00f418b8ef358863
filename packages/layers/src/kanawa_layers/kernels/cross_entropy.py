"""softmax_cross_entropy.any.chunked: logits of a few tokens at a time.

The loss is the last thing a model computes and a sum: `forward` also computes its gradient, chunk by chunk, for a
cotangent of one, and `backward` only scales it (as in Liger-Kernel's fused linear cross entropy). That costs no
more matmuls than storing all logits.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.platform import current_platform
from kanawa.kernels.softmax_cross_entropy import (
    CrossEntropyProblem,
    Sums,
    TokenLosses,
    is_target,
    logit_gradients,
    project,
    token_losses,
    weighted_sums,
    whole_vocab,
)
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins.devices import device_spec_of_kind

#: fp32 logits that exist at a time on a shard, at least.
CHUNK_BYTES = 128 * 2**20
#: Tokens of a chunk for each FLOP in the time of one byte of memory. A chunk reads the weight twice and adds to its
#: gradient, some 12 bytes a number, and computes 6 FLOPs a number and token: half as long here.
_INTENSITY = 4
#: The part of a device's memory that the logits of a chunk may take.
_MEMORY_PART = 16


class ChunkedCrossEntropy(Kernel):
    """Holds one chunk of logits and, when differentiated, one fp32 gradient of the weight."""

    name: ClassVar[str] = "softmax_cross_entropy.any.chunked"
    operation: ClassVar[str] = "softmax_cross_entropy"
    priority: ClassVar[int] = 10
    local: ClassVar[bool] = True

    def supports(self, problem: CrossEntropyProblem, device: Any) -> Verdict:
        """Returns support where there is more than one chunk."""
        size = chunk_size(problem)
        reason = f"{problem.tokens} tokens fit in one chunk of {size}: nothing to save"
        return first_refusal((problem.tokens <= size, reason))

    def apply(self, problem: CrossEntropyProblem, operands: Operands) -> Sums:
        """Returns sums over tokens, without gradients."""

        def one_chunk(total: Sums, chunk: tuple[jax.Array, ...]) -> tuple[Sums, None]:
            hidden, targets, loss_weights = chunk
            logits = project(problem, hidden, operands["weight"])
            losses = token_losses(problem, logits, targets)
            return _add(total, weighted_sums(losses, loss_weights)), None

        return jax.lax.scan(one_chunk, _no_sums(), _chunks(problem, operands))[0]

    def forward(self, problem: CrossEntropyProblem, operands: Operands) -> tuple[Sums, dict[str, jax.Array]]:
        """Returns (sums over tokens, the gradient of the loss sum by operand)."""
        weight = operands["weight"]

        def one_chunk(total: Any, chunk: tuple[jax.Array, ...]) -> tuple[Any, Any]:
            sums, dweight = total
            hidden, targets, loss_weights = chunk
            logits = project(problem, hidden, weight)
            losses = token_losses(problem, logits, targets)
            # Gradients are taken while the chunk's logits are at hand: the backward pass then only scales them, and no
            # logits are stored or computed twice. That holds because the loss is a sum, whose cotangent is one number.
            dlogits = _dlogits(problem, logits, losses, targets, loss_weights).astype(hidden.dtype)
            dhidden, more = logit_gradients(problem.tied, hidden, weight, dlogits)
            # Summed over all chunks in fp32: in bf16 the later ones would be lost in the sum.
            return (_add(sums, weighted_sums(losses, loss_weights)), dweight + more), (
                dhidden.astype(hidden.dtype),
                losses.loss,
            )

        start = (_no_sums(), jnp.zeros(weight.shape, jnp.float32))
        chunks = _chunks(problem, operands)
        (sums, dweight), (dhidden, loss) = jax.lax.scan(one_chunk, start, chunks)
        return sums, {
            "hidden": _together(dhidden, operands["hidden"].shape),
            "weight": dweight,
            # The loss is linear in the weights: a token's loss is the gradient by its weight.
            "loss_weights": _together(loss, operands["targets"].shape),
        }

    def backward(
        self,
        problem: CrossEntropyProblem,
        operands: Operands,
        out: Sums,
        residuals: dict[str, jax.Array],
        cotangents: Sums,
    ) -> dict[str, jax.Array]:
        """Returns the gradients scaled; only the loss and weight sums are differentiable."""
        loss = cotangents.loss
        # Every shard of the vocabulary returned the whole loss, of which hidden and weight saw a part each.
        # In shard_map each has its share of the output's cotangent: all shares together are that of the one
        # loss.
        whole = jax.lax.psum(loss, problem.vocab_axes) if problem.vocab_axes else loss
        grads = {name: residuals[name] * whole.astype(residuals[name].dtype) for name in ("hidden", "weight")}
        grads["loss_weights"] = residuals["loss_weights"] * loss + cotangents.weight
        return grads


def chunk_size(problem: CrossEntropyProblem) -> int:
    """Returns how many tokens a chunk holds: as many as asked for, or as keep its matmuls busy and fit, evenly."""
    largest = problem.chunk_tokens or max(1, CHUNK_BYTES // (4 * problem.vocab), _busy_tokens(problem))
    # As many chunks as are needed, then evenly filled: a last chunk of few tokens would cost a whole one.
    count = math.ceil(problem.tokens / largest)
    return math.ceil(problem.tokens / count)


def _busy_tokens(problem: CrossEntropyProblem) -> int:
    """Returns tokens with which a chunk computes longer than it reads and writes the weight, as far as memory allows;
    0 for an unknown device.
    """
    _, kind = current_platform()
    device = None if kind is None else device_spec_of_kind(kind)
    if device is None or not device.peak_flops.get("bfloat16"):
        return 0
    busy = _INTENSITY * device.peak_flops["bfloat16"] / device.memory_bandwidth
    room = device.memory_bytes / device.jax_devices_per_chip / _MEMORY_PART / (4 * problem.vocab)
    # Whole tiles of every matrix unit.
    return int(min(busy, room)) // 256 * 256


def _chunks(problem: CrossEntropyProblem, operands: Operands) -> tuple[jax.Array, ...]:
    """Returns hidden, targets and loss weights as [chunks, tokens, …]; padding has weight 0."""
    size = chunk_size(problem)
    count = math.ceil(problem.tokens / size)
    tokens = problem.tokens
    flat: tuple[jax.Array, ...] = (
        operands["hidden"].reshape(tokens, problem.width),
        operands["targets"].reshape(tokens),
        operands["loss_weights"].reshape(tokens),
    )
    padding = count * size - tokens
    if padding:
        flat = tuple(jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for x in flat)
    return tuple(x.reshape(count, size, *x.shape[1:]) for x in flat)


def _together(chunks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns [chunks, tokens, …] as an array of `shape`, padding cut off."""
    flat = chunks.reshape(-1, *chunks.shape[2:])
    tokens = math.prod(shape) // math.prod(chunks.shape[2:])
    return flat[:tokens].reshape(shape)


def _dlogits(
    problem: CrossEntropyProblem,
    logits: jax.Array,
    losses: TokenLosses,
    targets: jax.Array,
    loss_weights: jax.Array,
) -> jax.Array:
    """Returns the gradient of the loss sum by the logits before the cap, fp32."""
    probs = jnp.exp(logits - losses.log_sum_exp[:, None])
    # d(z * lse^2) = 2 z lse * softmax: the same probabilities, a little more of them.
    if problem.z_loss:
        probs = probs * (1 + 2 * problem.z_loss * losses.log_sum_exp[:, None])
    smoothing = problem.label_smoothing
    grad = probs - jnp.where(is_target(problem, logits, targets), 1 - smoothing, 0.0)
    if smoothing:
        grad = grad - smoothing / whole_vocab(problem)
    if problem.logit_cap is not None:
        # These logits are capped already: tanh' = 1 - tanh^2, and tanh is logits / cap.
        grad = grad * (1 - jnp.square(logits / problem.logit_cap))
    return grad * loss_weights.astype(jnp.float32)[:, None]


def _no_sums() -> Sums:
    return Sums(*[jnp.zeros((), jnp.float32)] * len(Sums._fields))


def _add(a: Sums, b: Sums) -> Sums:
    return Sums(*(x + y for x, y in zip(a, b, strict=True)))
