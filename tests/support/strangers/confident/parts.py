"""A penalty on confident predictions (Pereyra et al. 2017, arXiv:1701.06548), and the modifier that adds it."""

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa_layers.models.token_loss import SumOfLosses, TokenLoss


class Confidence(TokenLoss):
    """Minus the entropy of the predictions, in training."""

    class Config(TokenLoss.Config):
        coefficient: kn.NonNegative = 0.1

    def forward(self, x, head, batch):
        """Adds the term."""
        if self.train:
            log_probs = jax.nn.log_softmax(head.logits(x))
            entropy, weights = -(jnp.exp(log_probs) * log_probs).sum(-1), batch.loss_weights
            self.add_loss("confidence", -(entropy * weights).sum(), weights.sum(), self.config.coefficient)


class AddConfidence(kn.Modifier):
    """Adds the penalty to the loss of a language model."""

    class Config(kn.Modifier.Config):
        coefficient: kn.NonNegative = 0.1

    def __call__(self, cfg):
        """Returns `cfg` with the loss as the first term of a sum."""
        term = Confidence.Config(coefficient=self.config.coefficient)
        kn.replace(cfg, target=TokenLoss, new=lambda old: SumOfLosses.Config(terms=(old, term)))
        return cfg
