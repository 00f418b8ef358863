"""Output heads: a weight of their own, or the embedding table again."""

import abc

import jax.numpy as jnp
import sashimono as sm
from jaxtyping import Array, Float


class Head(sm.Module):
    """Maps the last residual stream to logits; `weight` and `tied` let the loss avoid building them all."""

    class Config(sm.Module.Config):
        input_dim: int = sm.FROM_PARENT
        vocab_size: int = sm.FROM_PARENT

    #: Whether `weight` is [vocab, embed] rather than [embed, vocab].
    tied: bool = False

    @abc.abstractmethod
    def weight(self) -> Float[Array, "..."]:
        """Returns the projection in the compute dtype."""

    @sm.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return 2.0 * self.config.input_dim * self.config.vocab_size


class UntiedHead(Head):
    """A projection of its own."""

    def setup(self) -> None:
        """Declares the weight, [embed, vocab]."""
        cfg = self.config
        self.add_param("kernel", (cfg.input_dim, cfg.vocab_size), axes=("embed", "vocab"))

    def weight(self) -> Float[Array, "E V"]:
        """Returns the projection."""
        return self.param("kernel")


class TiedHead(Head):
    """The embedding table, shared by the model (Press and Wolf 2017, arXiv:1608.05859)."""

    tied = True

    def weight(self) -> Float[Array, "V E"]:
        """Returns the shared table."""
        return self.shared("embedding").table()


def project(x: Float[Array, "B T E"], head: Head) -> Float[Array, "B T V"]:
    """Returns fp32 logits of hidden states."""
    weight = head.weight()
    spec = "bte,ve->btv" if head.tied else "bte,ev->btv"
    return jnp.einsum(spec, x, weight, preferred_element_type=jnp.float32)
