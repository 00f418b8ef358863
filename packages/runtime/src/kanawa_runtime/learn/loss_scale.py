"""Dynamic loss scaling, so that float16 gradients neither vanish nor overflow (Micikevicius 2017, arXiv:1710.03740)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from kanawa.config import Configurable, Positive, Size

Flat = dict[str, jax.Array]

_SCALE, _GOOD = "loss-scale/scale", "loss-scale/good_updates"
NAMES = (_SCALE, _GOOD)


class LossScale(Configurable):
    """The learner's `loss_scale` slot: the loss is multiplied before the gradient, and the gradient divided after it.

    An update whose gradients aren't finite is skipped and halves the scale; `interval` good ones in a row double it.
    For float16 compute; bfloat16 has float32's range and needs none.
    """

    class Config(Configurable.Config):
        initial: Positive = 2.0**15
        interval: Size = 2000
        largest: Positive = 2.0**24

    def init(self) -> Flat:
        """Returns the state before the first update."""
        return {_SCALE: jnp.full((), self.config.initial, jnp.float32), _GOOD: jnp.zeros((), jnp.int32)}

    def scale(self, opt: Mapping[str, jax.Array]) -> jax.Array:
        """Returns what to multiply the next loss by, fp32 scalar."""
        return opt[_SCALE]

    def update(self, opt: Mapping[str, jax.Array], finite: jax.Array) -> Flat:
        """Returns the state after an update whose gradients were finite or not."""
        cfg, scale = self.config, opt[_SCALE]
        good = jnp.where(finite, opt[_GOOD] + 1, 0)
        grows = good >= cfg.interval
        larger = jnp.where(grows, jnp.minimum(2.0 * scale, cfg.largest), scale)
        # At 1 the loss itself overflows: smaller scales wouldn't help.
        return {
            _SCALE: jnp.where(finite, larger, jnp.maximum(scale / 2.0, 1.0)),
            _GOOD: jnp.where(grows, 0, good),
        }
