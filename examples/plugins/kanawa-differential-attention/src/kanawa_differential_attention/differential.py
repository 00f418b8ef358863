"""Differential attention (Ye et al. 2024, arXiv:2410.05258): one softmax minus a learned part of another."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import CacheView
from kanawa_layers.attention.dot_product import DotProduct, SoftmaxDotProduct


class Differential(DotProduct):
    """Heads 2i and 2i + 1 are one differential head: both score, and both halves of its values are weighed alike.

    The difference is normalised over its 2 * head_dim values and scaled by 1 - `start` (section 2.1). Head counts must
    be even; the output has as many heads as the queries.
    """

    inner: DotProduct

    class Config(DotProduct.Config):
        start: float = 0.8
        eps: float = 1e-5
        inner: DotProduct.Config = SoftmaxDotProduct.Config()

    def setup(self) -> None:
        """Declares the learned part of lambda, of one value for all heads, and the inner product."""
        cfg = self.config
        self.add_child("inner", cfg.inner, scale=cfg.scale, logit_cap=cfg.logit_cap)
        self.add_param("amount", (), axes=(), init=kn.zeros, weight_decay=0.0)

    def forward(
        self, q: Float[Array, "B T H D"], keys: CacheView, *where: object, **extra: object
    ) -> Float[Array, "B T H D"]:
        """Returns the normalised difference, in the dtype of `q`."""
        v = keys.k if keys.v is None else keys.v
        values = jnp.concatenate([v[..., 0::2, :], v[..., 1::2, :]], axis=-1)
        first, second = (
            self.inner(
                q[..., half::2, :],
                keys._replace(k=keys.k[..., half::2, :], v=values),
                *where,
                **{name: _of_half(name, value, half) for name, value in extra.items()},
            )
            for half in (0, 1)
        )
        amount = jnp.exp(self.param("amount", dtype=jnp.float32)) - 1.0 + self.config.start
        difference = first.astype(jnp.float32) - amount * second.astype(jnp.float32)
        rms = jax.lax.rsqrt(jnp.mean(jnp.square(difference), axis=-1, keepdims=True) + self.config.eps)
        return ((1.0 - self.config.start) * rms * difference).astype(q.dtype).reshape(q.shape)


def _of_half(name: str, value: object, half: int) -> object:
    """Returns the part of an argument that belongs to every other head: biases [B, H, T, S], sinks [H]."""
    if value is None or name not in ("bias", "sinks"):
        return value
    return value[:, half::2] if name == "bias" else value[half::2]


class UseDifferential(kn.Modifier):
    """`differential-attention`: every dot product becomes a differential one."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every dot product under `where` replaced."""
        kn.replace(cfg, target=DotProduct, new=Differential.Config(), where=self.config.where)
        return cfg
