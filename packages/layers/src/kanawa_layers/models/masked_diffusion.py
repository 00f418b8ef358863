"""A text model that fills in hidden tokens, in any order: masked diffusion in the loss slot of a decoder."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch

from kanawa_layers.models.head import Head
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss


class MaskedDiffusion(TokenLoss):
    """`loss` of hidden tokens, each weighted by 1 / t of absorbing diffusion: a bound on nats a token.

    Rows bring the weights, whose sum is the number of tokens (see the source `masked-diffusion`), so that the mean is
    an unbiased estimate of the bound of MDLM (Sahoo et al. 2024, arXiv:2406.07524) and LLaDA (arXiv:2502.09992).
    `mask_id` stands for a hidden token; samplers read it. Training also has `hidden`, the share of tokens hidden.
    """

    loss: TokenLoss

    class Config(TokenLoss.Config):
        mask_id: kn.Count = kn.REQUIRED
        loss: TokenLoss.Config = CrossEntropy.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the coefficient: an outer one would be ignored."""
            return ["coefficient is set on masked diffusion; set it on `loss`"] if self.coefficient != 1.0 else []

    def setup(self) -> None:
        """Declares the loss of a token."""
        self.add_child("loss", self.config.loss)

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds the bound."""
        hidden = jnp.sum(batch.loss_weights > 0, dtype=jnp.float32)
        self.record("hidden", kn.Mean(hidden, jnp.sum(batch.loss_weights)))
        self.loss(x, head, batch)

    @classmethod
    def hidden_token(cls, cfg: Any) -> int | None:
        """Returns `mask_id`."""
        return int(cfg.mask_id)
