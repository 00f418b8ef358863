"""Output heads: a weight of their own, or the embedding table again."""

import abc

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.contract import logits_of


class Head(kn.Module):
    """Maps the last residual stream to logits; `weight` and `tied` let the loss avoid building them all.

    Logits are multiplied by `logit_scale` and then, with `logit_cap` c, become c * tanh(logits / c) (Gemma 2,
    arXiv:2408.00118, section 2).
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        vocab_size: kn.Size = kn.FROM_PARENT
        logit_scale: kn.Finite = 1.0
        logit_cap: kn.Positive | None = None

    #: Whether `weight` is [vocab, embed] rather than [embed, vocab].
    tied: bool = False

    @abc.abstractmethod
    def weight(self) -> Float[Array, "..."]:
        """Returns the projection in the compute dtype."""

    @kn.nowrap
    def scaled(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns hidden states times `logit_scale`: what the weight and then the cap apply to."""
        scale = self.config.logit_scale
        return x if scale == 1.0 else x * jnp.asarray(scale, x.dtype)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return 2.0 * self.config.input_dim * self.config.vocab_size


class UntiedHead(Head):
    """A projection of its own."""

    class Config(Head.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"kernel": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config())}
        )

    def setup(self) -> None:
        """Declares the weight, [embed, vocab]."""
        cfg = self.config
        # Not "weight" as elsewhere: that is the method which losses ask, whether the head is tied or not.
        self.add_param("kernel", (cfg.input_dim, cfg.vocab_size), axes=("embed", "vocab"))

    def weight(self) -> Float[Array, "E V"]:
        """Returns the projection."""
        return self.param("kernel")


class TiedHead(Head):
    """The embedding table, shared by the model (Press and Wolf 2017, arXiv:1608.05859)."""

    class Config(Head.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(repeats={"weight": "embedding.weight"})

    tied = True

    def weight(self) -> Float[Array, "V E"]:
        """Returns the shared table."""
        return self.shared("embedding").table()


def project(x: Float[Array, "B T E"], head: Head) -> Float[Array, "B T V"]:
    """Returns fp32 logits of hidden states, scaled and capped."""
    weight, cap = head.weight(), head.config.logit_cap
    logits = logits_of(head.scaled(x), weight, tied=head.tied)
    return logits if cap is None else cap * jnp.tanh(logits / cap)
