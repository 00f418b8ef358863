"""A text model that fills in hidden tokens, in any order: masked diffusion in the loss slot of a decoder."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch, CausalLM, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.attention.masks import Bidirectional, Window
from kanawa_layers.models.head import Head
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.modifiers.fields import edit_with


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


class MaskedDiffusionLoss(kn.Modifier):
    """`masked-diffusion-loss`: attention sees both sides, and the loss is that of masked diffusion.

    A window of n keys becomes n - 1 on either side. The vocabulary grows to hold `mask_id`, to a multiple of 128.
    """

    class Config(kn.Modifier.Config):
        mask_id: kn.Count = kn.REQUIRED

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with both changed; raises ConfigError for a model that isn't causal, or with a recurrence."""
        model: Any = vars(cfg).get("model", cfg)
        if not isinstance(model, CausalLM.Config) or "loss" not in model.fields():
            message = f"masked-diffusion: {type(model).__qualname__} is no causal language model with a slot `loss`"
            raise ConfigError(message)
        mask_id = self.config.mask_id
        if isinstance(model.loss, MaskedDiffusion.Config):
            model.loss.set(mask_id=mask_id)
            return cfg
        one_sided = sorted(
            {
                type(node).__qualname__.removesuffix(".Config")
                for _, node in model.walk()
                if isinstance(node, SequenceMixer.Config) and "mask" not in node.fields()
            }
        )
        if one_sided:
            message = f"masked-diffusion: {', '.join(one_sided)} sees earlier tokens only; take a model of attention"
            raise ConfigError(message)
        edit_with(cfg, SequenceMixer, "**", ("mask",), _see_both_sides)
        if mask_id >= model.vocab_size:
            model.set(vocab_size=-(-(mask_id + 1) // 128) * 128)
        model.set(loss=MaskedDiffusion.Config(mask_id=mask_id, loss=model.loss.clone()))
        return cfg


def _see_both_sides(node: Any) -> None:
    window = vars(node).get("window")
    if window is None:
        node.set(mask=Bidirectional.Config())
    else:
        node.set(mask=Window.Config(left=window - 1, right=window - 1), window=None)
