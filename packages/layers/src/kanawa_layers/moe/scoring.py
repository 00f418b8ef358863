"""How a router turns logits into scores: the numbers that rank experts and weigh their outputs."""

import abc

import jax
import kanawa as kn
from jaxtyping import Array, Float


class Scoring(kn.Configurable):
    """A pure function of fp32 logits, elementwise or over the experts."""

    @abc.abstractmethod
    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns non-negative fp32 scores that grow with the logits."""


class Softmax(Scoring):
    """Probabilities over all experts (Shazeer et al. 2017, arXiv:1701.06538).

    With the router's `normalise_weights` the weights are the softmax over the chosen logits alone, so top-k before
    softmax (Mixtral's paper, gpt-oss) and softmax before top-k are the same thing.
    """

    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns the softmax over experts."""
        return jax.nn.softmax(logits, axis=-1)


class Sigmoid(Scoring):
    """Each expert on its own (DeepSeek-V3, arXiv:2412.19437, equation 15; Llama 4)."""

    def scores(self, logits: Float[Array, "N X"]) -> Float[Array, "N X"]:
        """Returns the logistic function of each logit."""
        return jax.nn.sigmoid(logits)
