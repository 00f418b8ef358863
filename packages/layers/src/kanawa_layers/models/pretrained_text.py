"""Encoders of texts that other models were trained with: the text tower of CLIP or SigLIP, the encoder of T5."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Int
from kanawa.contracts import Pretrained, Sequences

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.diffusion.text_encoder import TextEncoder, TextStates, TextWidths, mean_of, tokens_of
from kanawa_layers.models.encoder_decoder import Tower
from kanawa_layers.models.two_towers import TextTower
from kanawa_layers.positions.absolute import AbsolutePositions


class PretrainedText(TextEncoder, Pretrained, abstract=True):
    """An encoder that is frozen unless `trained`; with `hides_padding` the network sees no state past a text's end."""

    class Config(TextEncoder.Config, Pretrained.Config):
        trained: bool = False
        hides_padding: bool = True


class TowerText(PretrainedText):
    """The text tower of a model of pictures and texts: its states after the last norm, and the projected vector.

    Places past a text's end hold `pad_id`, which the tower reads as released ones do.
    """

    tower: TextTower

    class Config(PretrainedText.Config):
        output_dim: kn.Size = kn.REQUIRED
        pad_id: kn.Count = 0
        tower: TextTower.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(children={"tower": ""})

    @classmethod
    def widths(cls, cfg: Any) -> TextWidths:
        """Returns those of the tower's stream and of its projection."""
        return TextWidths(cfg.tower.input_dim, cfg.output_dim)

    @classmethod
    def taken(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of the text tower."""
        return {
            f"tower.{path.removeprefix('text.')}": leaf for path, leaf in stored.items() if path.startswith("text.")
        }

    def setup(self) -> None:
        """Declares the tower."""
        self.add_child("tower", self.config.tower, output_dim=self.config.output_dim)

    def forward(self, ids: Int[Array, "B T"]) -> TextStates:
        """Returns states and projected vectors."""
        cfg = self.config
        states, pooled = self.tower.states_and_vector(jnp.where(ids < 0, cfg.pad_id, ids))
        return TextStates(states, pooled, tokens_of(ids) if cfg.hides_padding else None)

    @kn.nowrap
    def flops_per_text(self) -> float:
        """Returns those of the tower."""
        return float(self.tower.flops_per_text(self.config.length))


class EncoderText(PretrainedText):
    """The encoder of an encoder-decoder such as T5: its last stream, and the mean of it.

    Padding is hidden in the encoder as well; without `hides_padding` both read `pad_id` there.
    """

    embedding: Embedding
    positions: AbsolutePositions | None
    encoder: Tower

    class Config(PretrainedText.Config):
        input_dim: kn.Size = kn.REQUIRED
        pad_id: kn.Count = 0
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config | None = None
        encoder: Tower.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"embedding": "shared", "positions": "positions", "encoder": "encoder"}
        )

    @classmethod
    def widths(cls, cfg: Any) -> TextWidths:
        """Returns the stream's width, twice."""
        return TextWidths(cfg.input_dim, cfg.input_dim)

    @classmethod
    def taken(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of the embedding and of the encoder."""
        parts = ("embedding.", "positions.", "encoder.")
        return {path: leaf for path, leaf in stored.items() if path.startswith(parts)}

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("encoder", cfg.encoder, input_dim=cfg.input_dim)

    def forward(self, ids: Int[Array, "B T"]) -> TextStates:
        """Returns states and their mean."""
        cfg = self.config
        segments = tokens_of(ids) if cfg.hides_padding else jnp.ones_like(ids)
        sequences = Sequences(segment_ids=segments)
        x = self.embedding(jnp.where(ids < 0, cfg.pad_id, ids))
        if self.positions is not None:
            x = x + self.positions(jnp.broadcast_to(sequences.token_positions(x.shape[1]), ids.shape))
        x, _ = self.encoder(kn.constrain(x, ("batch", "length", "embed")), sequences)
        return TextStates(x, mean_of(x, segments), segments if cfg.hides_padding else None)

    @kn.nowrap
    def flops_per_text(self) -> float:
        """Returns those of the encoder."""
        length = self.config.length
        return float(self.encoder.flops_per_token(length) * length)
