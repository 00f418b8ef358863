"""Balancing without a loss (Wang et al. 2024, arXiv:2408.15664; DeepSeek-V3): a bias that only selection sees."""

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float


class BiasBalancing(kn.Module):
    """A bias for each expert, added to selection scores only; no gradient reaches it, and weights don't include it.

    After each training call it moves by `rate`: up for experts with less than the mean load, down for the others.
    """

    class Config(kn.Module.Config):
        num_experts: kn.Size = kn.FROM_PARENT
        rate: kn.NonNegative = 0.001
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"bias": "e_score_correction_bias"})

    def setup(self) -> None:
        """Declares the bias as state, zeros, fp32."""
        # fp32: near 1, bfloat16 has steps of 1 / 128, in which updates of 0.001 would be lost.
        self.add_state("bias", (self.config.num_experts,), axes=("experts",))

    def bias(self) -> Float[Array, " X"]:
        """Returns the bias of this step."""
        return self.state("bias")

    def observe(self, load: Float[Array, " X"]) -> None:
        """Moves the bias, in training, by each expert's share of the chosen copies."""
        if self.train:
            # Steps of one size, as in the paper: with steps proportional to the imbalance, one unusual batch could
            # change every choice.
            self.update("bias", self.state("bias") + self.config.rate * jnp.sign(jnp.mean(load) - load))
