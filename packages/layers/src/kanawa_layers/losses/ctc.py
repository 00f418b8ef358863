"""Connectionist temporal classification (Graves et al. 2006): labels without knowing which frames they belong to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

#: Stands for log 0: large enough that exp returns 0, finite so that differences of two of them are not NaN.
LOG_ZERO = -1e30


def ctc(
    logits: Float[Array, "B T V"],
    num_frames: Int[Array, " B"],
    labels: Int[Array, "B L"],
    num_labels: Int[Array, " B"],
    *,
    blank: int = 0,
) -> Float[Array, " B"]:
    """Returns -log p(labels) of each row, summed over all alignments, fp32.

    An alignment emits a token a frame; equal neighbours merge, then blanks are removed. Frames and labels past a row's
    lengths are padding. A row with too few frames for its labels has an infinite loss and no gradient.
    """
    num_frames, labels, num_labels = (jnp.asarray(x, jnp.int32) for x in (num_frames, labels, num_labels))
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    states = _states(labels, blank)
    batch, count = states.shape
    emitted = jnp.take_along_axis(log_probs, jnp.broadcast_to(states[:, None], (*logits.shape[:2], count)), axis=2)
    index = jnp.arange(count)[None]
    before_last = jnp.roll(states, 2, axis=1)
    # A blank between two labels may be skipped, unless it separates equal ones.
    skips = (index % 2 == 1) & (index >= 2) & (states != before_last)
    alpha = jnp.where(index < 2, emitted[:, 0], LOG_ZERO)

    def frame(alpha: Float[Array, "B S"], step: tuple[jax.Array, jax.Array]) -> tuple[Float[Array, "B S"], None]:
        scores, at = step
        one = jnp.where(index >= 1, jnp.roll(alpha, 1, axis=1), LOG_ZERO)
        two = jnp.where(skips, jnp.roll(alpha, 2, axis=1), LOG_ZERO)
        moved = jnp.logaddexp(jnp.logaddexp(alpha, one), two) + scores
        return jnp.where((at < num_frames)[:, None], moved, alpha), None

    later = (jnp.moveaxis(emitted[:, 1:], 1, 0), jnp.arange(1, logits.shape[1]))
    alpha, _ = jax.lax.scan(frame, alpha, later)
    ends_blank = jnp.take_along_axis(alpha, 2 * num_labels[:, None], axis=1)[:, 0]
    ends_label = jnp.take_along_axis(alpha, jnp.maximum(2 * num_labels - 1, 0)[:, None], axis=1)[:, 0]
    ends_label = jnp.where(num_labels > 0, ends_label, LOG_ZERO)
    possible = num_frames >= num_labels + _repeats(labels, num_labels)
    return jnp.where(possible, -jnp.logaddexp(ends_blank, ends_label), jnp.inf)


def _states(labels: Int[Array, "B L"], blank: int) -> Int[Array, "B S"]:
    """Returns the states of an alignment: blank, label, blank, label, …, blank."""
    batch, length = labels.shape
    pairs = jnp.stack([jnp.full_like(labels, blank), labels], axis=-1).reshape(batch, 2 * length)
    return jnp.concatenate([pairs, jnp.full((batch, 1), blank, labels.dtype)], axis=1)


def _repeats(labels: Int[Array, "B L"], num_labels: Int[Array, " B"]) -> Int[Array, " B"]:
    """Returns how many labels equal the one before, and so need a blank between."""
    equal = labels[:, 1:] == labels[:, :-1]
    inside = jnp.arange(1, labels.shape[1])[None] < num_labels[:, None]
    return jnp.sum(equal & inside, axis=1)
