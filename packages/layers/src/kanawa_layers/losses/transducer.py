"""The RNN transducer's loss (Graves 2012, arXiv:1211.3711): a sum over all alignments of labels with frames."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kanawa_layers.losses.ctc import LOG_ZERO


def transducer(
    blank: Float[Array, "B T U1"],
    label: Float[Array, "B T U"],
    num_frames: Int[Array, " B"],
    num_labels: Int[Array, " B"],
) -> Float[Array, " B"]:
    """Returns -log p(labels) of each row, summed over all alignments, fp32.

    `blank[t, u]` is the log-probability of going on to frame t + 1 after u labels, `label[t, u]` that of the row's next
    label there; U1 = U + 1. The last step of an alignment is a blank at the last frame. Frames and labels past a row's
    lengths are padding. A row without frames has an infinite loss and no gradient. Besides its inputs, the backward
    pass stores one value for each of T + U diagonals and U + 1 labels.
    """
    num_frames, num_labels = (jnp.asarray(x, jnp.int32) for x in (num_frames, num_labels))
    batch, frames, width = blank.shape
    # Column n of a skewed lattice is the diagonal on which frame + labels = n: its places depend only on the last one.
    at = jnp.arange(frames + width - 1)[:, None] - jnp.arange(width)[None]
    # What is read past the ends never comes back: frames only grow, and places before frame 0 have probability 0.
    clipped = jnp.clip(at, 0, frames - 1)[None]

    def skewed(x: Float[Array, "B T W"]) -> Float[Array, "N B W"]:
        index = jnp.broadcast_to(clipped[:, :, : x.shape[2]], (batch, at.shape[0], x.shape[2]))
        return jnp.moveaxis(jnp.take_along_axis(x.astype(jnp.float32), index, axis=1), 1, 0)

    blanks = skewed(blank)
    labels = jnp.pad(skewed(label), ((0, 0), (0, 0), (0, 1)), constant_values=LOG_ZERO)
    ends = num_frames - 1 + num_labels
    start = jnp.where(jnp.arange(width)[None] == 0, 0.0, LOG_ZERO) + jnp.zeros((batch, 1))

    @jax.checkpoint
    def diagonal(
        carry: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        alpha, total = carry
        blanks, labels, number = step
        finished = alpha + blanks
        here = jnp.take_along_axis(finished, num_labels[:, None], axis=1)[:, 0]
        total = jnp.where(number == ends, here, total)
        # A label moves to the next column of the same diagonal step.
        moved = jnp.pad((alpha + labels)[:, :-1], ((0, 0), (1, 0)), constant_values=LOG_ZERO)
        return (jnp.logaddexp(finished, moved), total), None

    steps = (blanks, labels, jnp.arange(at.shape[0]))
    (_, total), _ = jax.lax.scan(diagonal, (start, jnp.full((batch,), LOG_ZERO)), steps)
    return jnp.where(num_frames > 0, -total, jnp.inf)
