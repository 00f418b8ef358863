"""BERT's pooled first token, and its masked-token head: a transform, then the embedding table with biases."""

from collections.abc import Callable

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.feedforward.activations import gelu_exact
from kanawa_layers.models.head import Head


class FirstTokenPooler(kn.Module):
    """tanh(dense(first token)) (Devlin et al. 2018, arXiv:1810.04805, section 3.1)."""

    dense: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        dense: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"dense": "dense"})

    def setup(self) -> None:
        """Declares the projection."""
        dim = self.config.input_dim
        add_linear(self, "dense", dim, dim, ("embed", None))

    def forward(self, x: Float[Array, "B T E"]) -> Float[Array, "B E"]:
        """Returns the pooled vector of each row."""
        return self.each(x[:, 0])

    def each(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns what each token would be pooled to, were it the first: of packed rows, several are."""
        return jnp.tanh(self.dense(x))


class HeadTransform(kn.Module):
    """norm(activation(dense(x))), before a head (Devlin et al. 2018, arXiv:1810.04805, released code)."""

    dense: Linear
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = gelu_exact
        dense: Linear.Config = Linear.Config(bias=True)
        norm: Norm.Config = LayerNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"dense": "dense", "norm": "LayerNorm"})

    def setup(self) -> None:
        """Declares the projection and the norm."""
        dim = self.config.input_dim
        add_linear(self, "dense", dim, dim, ("embed", None))
        self.add_child("norm", self.config.norm, input_dim=dim)

    def forward(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns the transformed stream."""
        return self.norm(self.config.activation(self.dense(x)))


class BiasedTiedHead(Head):
    """The embedding table, shared by the model, and a bias of its own for each token.

    The bias is an extra column of the weight, and the stream gets an extra column of ones, so losses and kernels are
    unchanged.
    """

    class Config(Head.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"bias": "bias"}, repeats={"decoder.weight": "embedding.weight", "decoder.bias": "head.bias"}
        )

    tied = True

    def setup(self) -> None:
        """Declares `bias` [vocab], zero, never decayed."""
        self.add_param("bias", (self.config.vocab_size,), axes=("vocab",), init=kn.zeros, weight_decay=0.0)

    def weight(self) -> Float[Array, "V E1"]:
        """Returns the shared table with the bias as its last column."""
        embedding: Embedding = self.shared_module("embedding")
        return jnp.concatenate([embedding.table(), self.param("bias")[:, None]], axis=1)

    @kn.nowrap
    def scaled(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E1"]:
        """Returns hidden states, scaled, and a last column of ones."""
        x = super().scaled(x)
        return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)
