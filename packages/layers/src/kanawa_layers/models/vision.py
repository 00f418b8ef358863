"""The vision transformer as an image classifier: patches, a class token, positions, stack, norm, head."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import ImageBatch, Model, Norm, Sequences, Stack

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.positions.absolute import AbsolutePositions


class ImageClassifier(Model):
    """Classifies by the stream of a learned token before the patches (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

    batch = ImageBatch

    patches: PatchEmbedding
    positions: AbsolutePositions | None
    dropout: Dropout | None
    stack: Stack
    norm: Norm
    head: Linear

    class Config(Model.Config):
        input_dim: kn.Size = kn.REQUIRED
        num_classes: kn.Size = kn.REQUIRED
        label_smoothing: kn.Partial = 0.0
        patches: PatchEmbedding.Config = PatchEmbedding.Config()
        positions: AbsolutePositions.Config | None = None
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()
        head: Linear.Config = Linear.Config(bias=True)

    def setup(self) -> None:
        """Declares the parts and `class_token` [embed], zero."""
        cfg = self.config
        self.add_child("patches", cfg.patches, output_dim=cfg.input_dim)
        self.add_param("class_token", (cfg.input_dim,), axes=("embed",), init=kn.zeros, weight_decay=0.0)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        shapes: dict[str, Any] = {
            "input_shape": (cfg.input_dim,),
            "output_shape": (cfg.num_classes,),
            "axes": ("embed", "vocab"),
        }
        self.add_child("head", cfg.head, **shapes)

    def predict(self, images: Float[Array, "B C H W"]) -> Float[Array, "B classes"]:
        """Returns fp32 logits of the classes."""
        x = self.patches(images.astype(kn.current_plan().precision.compute))
        token = jnp.broadcast_to(self.param("class_token")[None, None], (x.shape[0], 1, x.shape[2]))
        x = jnp.concatenate([token, x], axis=1)
        if self.positions is not None:
            x = x + self.positions(jnp.arange(x.shape[1], dtype=jnp.int32)[None])
        x = x if self.dropout is None else self.dropout(x)
        x, _ = self.stack(kn.constrain(x, ("batch", "length", "embed")), Sequences())
        # A norm works on each token alone, so only the one that is read needs it.
        return self.head(self.norm(x[:, 0])).astype(jnp.float32)

    def forward(self, batch: ImageBatch) -> None:
        """Adds the mean cross entropy of the images, and records the accuracy."""
        logits = self.predict(batch.images)
        targets = jax.nn.one_hot(batch.target_ids, logits.shape[-1], dtype=jnp.float32)
        smoothing = self.config.label_smoothing if self.train else 0.0
        targets = (1.0 - smoothing) * targets + smoothing / logits.shape[-1]
        nats = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
        count = jnp.sum(batch.loss_weights)
        self.add_loss("cross_entropy", jnp.sum(nats * batch.loss_weights), count, primary=True)
        correct = (jnp.argmax(logits, axis=-1) == batch.target_ids).astype(jnp.float32)
        self.record("accuracy", kn.Mean(jnp.sum(correct * batch.loss_weights), count))
