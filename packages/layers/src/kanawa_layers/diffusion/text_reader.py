"""A small encoder of texts that learns with the pictures."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Int
from kanawa.contracts import Norm, Sequences, Stack

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.diffusion.text_encoder import TextEncoder, TextStates, TextWidths, mean_of, tokens_of
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions


class TextReader(TextEncoder):
    """Embeddings and positions through a stack that sees both ways; a text's vector is the mean of its states."""

    embedding: Embedding
    positions: AbsolutePositions
    stack: Stack
    norm: Norm

    class Config(TextEncoder.Config):
        input_dim: kn.Size = kn.REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config = LearnedPositions.Config(max_length=64)
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"embedding": "embedding", "positions": "positions", "stack": "stack", "norm": "norm"}
        )

    @classmethod
    def widths(cls, cfg: Any) -> TextWidths:
        """Returns the stream's width, twice."""
        return TextWidths(cfg.input_dim, cfg.input_dim)

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        for name in ("stack", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)

    def forward(self, ids: Int[Array, "B T"]) -> TextStates:
        """Returns states, their mean, and which tokens there are."""
        segments = tokens_of(ids)
        places = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
        x = self.embedding(jnp.maximum(ids, 0)) + self.positions(places)
        x, _ = self.stack(kn.constrain(x, ("batch", "length", "embed")), Sequences(segment_ids=segments))
        x = self.norm(x)
        return TextStates(x, mean_of(x, segments), segments)

    @kn.nowrap
    def flops_per_text(self) -> float:
        """Returns those of the stack."""
        length = self.config.length
        return float(self.stack.flops_per_token(length) * length)
