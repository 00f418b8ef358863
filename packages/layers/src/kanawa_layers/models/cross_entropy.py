"""The language-model loss: token-weighted cross entropy from hidden states, without storing all logits."""

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy

from kanawa_layers.models.head import Head
from kanawa_layers.models.token_loss import TokenLoss


class CrossEntropy(TokenLoss):
    """Mean negative log-likelihood over the batch's weighted tokens, fp32.

    `z_loss` and `label_smoothing` shape the training loss only; evaluation reports the plain likelihood.
    """

    class Config(TokenLoss.Config):
        z_loss: kn.NonNegative = 0.0
        label_smoothing: kn.Partial = 0.0

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Adds the loss of the logits that `head` computes."""
        cfg, train = self.config, self.train
        total, count, extra = softmax_cross_entropy(
            # The scale multiplies [B, T, E], since logits, [B, T, V], never exist as a whole.
            head.scaled(x),
            head.weight(),
            batch.target_ids,
            batch.loss_weights,
            tied=head.tied,
            logit_cap=head.config.logit_cap,
            z_loss=cfg.z_loss if train else 0.0,
            label_smoothing=cfg.label_smoothing if train else 0.0,
        )
        self.add_loss("cross_entropy", total, count, cfg.coefficient, primary=True)
        if not train:
            self.record("accuracy", kn.Mean(extra["correct"], count))
        elif cfg.z_loss or cfg.label_smoothing:
            self.record("nll", kn.Mean(extra["nll"], count))
