"""Per-layer embeddings: every layer reads a small vector of its own for each token (Gemma 3n and 4).

Legend: B rows, T tokens, E width of the stream, L layers, P width of a layer's input.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import CacheState, Norm, Sequences

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import SANDWICH_NAMES, SandwichNormBlock

#: The names under which the embedding offers all of them, [B, T, L, P], and the stack those of a layer, [B, T, P].
_ALL, _OF_LAYER = "per-layer inputs", "per-layer input"


class PerLayerEmbedding(Embedding):
    """An embedding with a second table, of `num_layers` vectors a token, that it offers to the layers.

    A layer's input is (sqrt(P) table[token] + norm(projection(x) / sqrt(E))) / sqrt(2), x the scaled embedding.
    """

    projection: Linear
    norm: Norm

    class Config(Embedding.Config):
        num_layers: kn.Size = kn.REQUIRED
        width: kn.Size = 256
        projection: Linear.Config = Linear.Config()
        norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"weight": "embed_tokens.weight", "table": "embed_tokens_per_layer.weight"},
            children={"projection": "per_layer_model_projection", "norm": "per_layer_projection_norm"},
        )

    def setup(self) -> None:
        """Declares both tables, the projection and its norm."""
        super().setup()
        cfg = self.config
        width = cfg.num_layers * cfg.width
        self.add_param(
            "table",
            (cfg.vocab_size, width),
            axes=("vocab", "embed"),
            init=kn.normal(cfg.init_stddev),
            fan_in_axes=(1,),
            fan_out_axes=(0,),
        )
        add_linear(self, "projection", cfg.output_dim, width, ("embed", None))
        self.add_child("norm", cfg.norm, input_dim=cfg.width)

    def forward(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Returns the scaled rows, and offers each layer's inputs."""
        cfg, x = self.config, super().forward(input_ids)
        split = (*input_ids.shape, cfg.num_layers, cfg.width)
        rows = jnp.take(self.param("table"), input_ids, axis=0).astype(x.dtype).reshape(split)
        seen = self.norm((self.projection(x) * jnp.asarray(cfg.output_dim**-0.5, x.dtype)).reshape(split))
        both = rows * jnp.asarray(math.sqrt(cfg.width), x.dtype) + seen
        self.offer(_ALL, both * jnp.asarray(2.0**-0.5, x.dtype))
        return x


class PerLayerStack(PatternStack):
    """A pattern of blocks, each of which finds its layer's input; `first_layer` is the tower's number of the first."""

    class Config(PatternStack.Config):
        first_layer: kn.Count = 0

    def _run(
        self, x: Float[Array, "B T E"], layer: Callable[..., Float[Array, "B T E"]], *, unrolled: bool
    ) -> Float[Array, "B T E"]:
        cfg = self.config
        inputs = jnp.moveaxis(self.offered(_ALL)[:, :, cfg.first_layer : cfg.first_layer + cfg.num_layers], 2, 0)

        def one_repeat(names: tuple[str, ...]) -> Callable[..., Any]:
            def body(carry: Float[Array, "B T E"], own: Float[Array, "J B T P"]) -> tuple[Float[Array, "B T E"], None]:
                for place, name in enumerate(names):
                    self.offer(_OF_LAYER, own[place])
                    carry = layer(self.children[name], carry)
                return carry, None

            return body

        period = len(self._names)
        repeats, rest = divmod(cfg.num_layers, period)
        scanned = inputs[: repeats * period].reshape(repeats, period, *inputs.shape[1:])
        x, _ = kn.scan(one_repeat(self._names), x, scanned, over=self._names, length=repeats, unrolled=unrolled)
        if rest:
            names = self._names[:rest]
            left = inputs[None, repeats * period :]
            x, _ = kn.scan(one_repeat(names), x, left, over=names, start=repeats, length=1, unrolled=True)
        return x


class PerLayerInput(kn.Module):
    """x + norm(projection(activation(gate(x)) * input)), the input what the stack offers."""

    gate: Linear
    projection: Linear
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        width: kn.Size = 256
        activation: Callable[..., Array] = gelu_tanh
        gate: Linear.Config = Linear.Config()
        projection: Linear.Config = Linear.Config()
        norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "gate": "per_layer_input_gate",
                "projection": "per_layer_projection",
                "norm": "post_per_layer_input_norm",
            }
        )

    def setup(self) -> None:
        """Declares both projections and the norm."""
        cfg = self.config
        add_linear(self, "gate", cfg.input_dim, cfg.width, ("embed", None))
        add_linear(self, "projection", cfg.width, cfg.input_dim, (None, "embed"))
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)

    def forward(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns the stream with the layer's input added."""
        y = self.config.activation(self.gate(x)) * self.offered(_OF_LAYER).astype(x.dtype)
        return x + self.norm(self.projection(y))


class ScaledBlock(SandwichNormBlock):
    """A sandwich-normed block, then its per-layer input, if any; the stream is multiplied by a constant, `scale`.

    The constant is state that no step changes: 1, or what a checkpoint says.
    """

    per_layer: PerLayerInput | None

    class Config(SandwichNormBlock.Config):
        per_layer: PerLayerInput.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"scale": "layer_scalar"}, children={**SANDWICH_NAMES, "per_layer": ""}
        )

    def setup(self) -> None:
        """Declares the branches, the per-layer input and the constant."""
        super().setup()
        self.add_state("scale", (1,), axes=(None,), init=kn.ones)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after the branches and the layer's input, and the attention's cache."""
        x, cache = super().forward(x, sequences, cache)
        x = x if self.per_layer is None else self.per_layer(x)
        return x * self.state("scale").astype(x.dtype)[None, None], cache
