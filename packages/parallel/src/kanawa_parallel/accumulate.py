"""Gradient accumulation that equals one large batch, whatever the microbatches' token counts."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import GradientStrategy, LossProgram
from kanawa.errors import ConfigError
from kanawa.module import Loss, Outputs


class Accumulate(GradientStrategy):
    """Scans `microbatches` slices of the batch and sums gradients in fp32.

    Each term of the loss is a ratio of sums, and a microbatch's gradient of that ratio would use its own weight.
    A first pass, without gradients, finds the weights of the whole batch; the second divides by those.
    """

    class Config(GradientStrategy.Config):
        PLACEMENT = ("microbatches",)

        microbatches: kn.Size = kn.REQUIRED

    is_plain_sum = True

    def cuts(self) -> dict[str, int]:
        """Returns the number of slices."""
        return {"microbatches": self.config.microbatches}

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients of the whole batch's loss and merged outputs; state updates come from the last slice."""
        count = self.config.microbatches
        slices = jax.tree.map(lambda x: _split(x, count), batch)
        first = jax.tree.map(lambda x: x[0], slices)
        indices = jnp.arange(count)

        def weights(carry: None, xs: Any) -> tuple[None, Any]:
            out = loss(params, state, xs[0], jax.random.fold_in(key, xs[1]))
            return carry, {path: term.weight for path, term in out.losses.items()}

        _, each = jax.lax.scan(weights, None, (slices, indices))
        # Only weights leave that loop. Where they depend on the batch alone, as token counts do, XLA drops the model
        # from it.
        totals = jax.tree.map(lambda w: jnp.sum(w, 0), each)

        def scaled(p: Any, micro: Any, micro_key: jax.Array) -> tuple[jax.Array, Outputs]:
            out = loss(p, state, micro, micro_key)
            parts = (Loss(t.total, totals[path], t.coefficient).value() for path, t in out.losses.items())
            # total / whole weight is linear in the parts: gradients of microbatches add up to that of the whole batch.
            return sum(parts, jnp.zeros((), jnp.float32)), out

        def step(carry: tuple[Any, Outputs], xs: Any) -> tuple[tuple[Any, Outputs], None]:
            grads, merged = carry
            new, out = jax.grad(scaled, has_aux=True)(params, xs[0], jax.random.fold_in(key, xs[1]))
            grads = jax.tree.map(lambda g, n: g + n.astype(jnp.float32), grads, new)
            return (grads, merged.merge(out)), None

        zero_grads = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        shape = jax.eval_shape(lambda: loss(params, state, first, key))
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        (grads, outputs), _ = jax.lax.scan(step, (zero_grads, empty), (slices, indices))
        return jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params), outputs


def _split(x: jax.Array, count: int) -> jax.Array:
    if x.shape[0] % count:
        message = f"a batch of {x.shape[0]} rows can't be split in {count} equal microbatches"
        raise ConfigError(message)
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])


class AccumulateModifier(kn.Modifier):
    """`accumulate`: takes gradients over `microbatches` slices of each batch."""

    class Config(kn.Modifier.Config):
        microbatches: kn.Size = 2

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the accumulating gradient strategy."""
        cfg.set(gradients=Accumulate.Config(microbatches=self.config.microbatches))
        return cfg
