"""The language-model loss: token-weighted cross entropy from hidden states, without ever holding all logits."""

import sashimono as sm
from jaxtyping import Array, Float
from sashimono.contracts import Batch
from sashimono.kernels import softmax_cross_entropy


class CrossEntropy(sm.Module):
    """Mean negative log-likelihood over tokens of weight 1, fp32, with optional z-loss and logit cap."""

    class Config(sm.Module.Config):
        z_loss: float = 0.0
        logit_cap: float | None = None

    def forward(
        self, x: Float[Array, "B T E"], weight: Float[Array, "V E"], batch: Batch, *, transposed: bool
    ) -> None:
        """Adds the loss of hidden states against `batch.target_ids`.

        `weight` is [vocab, embed] when `transposed` (a tied table), else [embed, vocab].
        """
        cfg = self.config
        total, count, extra = softmax_cross_entropy(
            x.reshape(-1, x.shape[-1]),
            weight,
            batch.target_ids.reshape(-1),
            batch.loss_weights.reshape(-1),
            transposed=transposed,
            logit_cap=cfg.logit_cap,
            z_loss=cfg.z_loss,
        )
        self.add_loss("cross_entropy", total, count)
        self.record("accuracy", sm.Mean(extra["correct"], count))
        if cfg.z_loss:
            self.add_loss("z_loss", extra["z_loss"], count, cfg.z_loss)
