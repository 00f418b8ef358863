"""The language-model loss: token-weighted cross entropy from hidden states, without ever holding all logits."""

import sashimono as sm
from jaxtyping import Array, Float
from sashimono.contracts import Batch
from sashimono.kernels import softmax_cross_entropy


class CrossEntropy(sm.Module):
    """Mean negative log-likelihood over the batch's weighted tokens, fp32.

    `z_loss` and `label_smoothing` shape the training loss only; evaluation reports the plain likelihood.
    """

    class Config(sm.Module.Config):
        z_loss: float = 0.0
        label_smoothing: float = 0.0
        logit_cap: float | None = None

    def forward(self, x: Float[Array, "B T E"], weight: Float[Array, "V E"], batch: Batch, *, tied: bool) -> None:
        """Adds the loss of hidden states; `weight` is [vocab, embed] when `tied`, else [embed, vocab]."""
        cfg, train = self.config, self.train
        total, count, extra = softmax_cross_entropy(
            x,
            weight,
            batch.target_ids,
            batch.loss_weights,
            tied=tied,
            logit_cap=cfg.logit_cap,
            z_loss=cfg.z_loss if train else 0.0,
            label_smoothing=cfg.label_smoothing if train else 0.0,
        )
        self.add_loss("cross_entropy", total, count)
        if not train:
            self.record("accuracy", sm.Mean(extra["correct"], count))
        elif cfg.z_loss or cfg.label_smoothing:
            self.record("nll", sm.Mean(extra["nll"], count))
