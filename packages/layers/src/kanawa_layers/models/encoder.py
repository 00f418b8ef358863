"""The bidirectional encoder with a masked-token head: BERT and similar models, each part a slot."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, Labels, MaskedLM, Norm, RepresentsText, Sequences, Stack
from kanawa.errors import ModuleError

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.embedding import Embedding, TokenTypes
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.models.head import Head, labels_of_head
from kanawa_layers.models.masked_head import BiasedTiedHead, FirstTokenPooler, HeadTransform
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.positions.absolute import AbsolutePositions


class EncoderLM(MaskedLM, RepresentsText):
    """Trains on a Batch whose `input_ids` are masked, `target_ids` the originals, `loss_weights` 1 at masked places.

    Rows may be packed or padded by segment ids. `norm` is the last one of pre-norm encoders; `head` None makes an
    encoder whose loss, if it has one, reads the stream itself; `pooler` is what a head without a `transform` reads.
    """

    embedding: Embedding
    positions: AbsolutePositions | None
    token_types: TokenTypes | None
    embedding_norm: Norm | None
    dropout: Dropout | None
    stack: Stack
    norm: Norm | None
    pooler: FirstTokenPooler | None
    transform: HeadTransform | None
    head: Head | None
    loss: TokenLoss

    @classmethod
    def batch_of(cls, cfg: Any) -> type:
        """Returns the record of the loss."""
        kind = cfg.loss._target
        return cls.batch if kind is None else kind.batch

    class Config(MaskedLM.Config, RepresentsText.Config):
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config | None = None
        token_types: TokenTypes.Config | None = None
        embedding_norm: Norm.Config | None = LayerNorm.Config()
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config | None = None
        pooler: FirstTokenPooler.Config | None = None
        transform: HeadTransform.Config | None = HeadTransform.Config()
        head: Head.Config | None = BiasedTiedHead.Config()
        loss: TokenLoss.Config = CrossEntropy.Config()

    def setup(self) -> None:
        """Declares the parts, and shares the embedding and the head."""
        cfg = self.config
        width = cfg.input_dim
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=width)
        self.add_child("positions", cfg.positions, output_dim=width)
        self.add_child("token_types", cfg.token_types, output_dim=width)
        self.add_child("dropout", cfg.dropout)
        for name in ("embedding_norm", "stack", "norm", "pooler", "transform"):
            self.add_child(name, getattr(cfg, name), input_dim=width)
        self.add_child("head", cfg.head, input_dim=width, vocab_size=cfg.vocab_size)
        self.add_child("loss", cfg.loss)
        self.share("embedding", self.embedding)
        if self.head is not None:
            self.share("head", self.head)

    def encode(
        self, input_ids: Int[Array, "B T"], sequences: Sequences, token_types: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T E"]:
        """Returns the last stream; tokens without a type have type 0."""
        x = self.embedding(input_ids)
        if self.token_types is not None:
            # Always added: BERT's vector of type 0 isn't zero.
            x = x + self.token_types(jnp.zeros_like(input_ids) if token_types is None else token_types)
        if self.positions is not None:
            x = x + self.positions(jnp.broadcast_to(sequences.token_positions(x.shape[1]), x.shape[:2]))
        for part in (self.embedding_norm, self.dropout):
            x = x if part is None else part(x)
        x, _ = self.stack(kn.constrain(x, ("batch", "length", "embed")), sequences)
        return x if self.norm is None else self.norm(x)

    def forward(self, batch: Batch) -> None:
        """Adds the loss, by default the cross entropy of the weighted tokens; without a head, of the stream."""
        x = self.encode(batch.input_ids, Sequences(positions=batch.positions, segment_ids=batch.segment_ids))
        x, head = (x, None) if self.loss.reads_stream else self._before_head(x)
        self.loss(x, head, batch)

    def predict(
        self, input_ids: Int[Array, "B T"], segment_ids: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T V"]:
        """Returns fp32 logits of every token."""
        transformed, head = self._before_head(self.encode(input_ids, Sequences(segment_ids=segment_ids)))
        return head.logits(transformed)

    def states(
        self,
        input_ids: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        token_types: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T E"]:
        """Returns the last stream."""
        return self.encode(input_ids, Sequences(segment_ids=segment_ids), token_types)

    def label_logits(self, states: Float[Array, "B T E"]) -> Float[Array, "B T L"]:
        """Returns fp32 logits of the labels."""
        transformed, head = self._before_head(states)
        return head.logits(transformed)

    @classmethod
    def labels_of(cls, cfg: Any) -> Labels | None:
        """Returns the labels of the head."""
        return labels_of_head(cfg.head, first=True)

    def pool(self, input_ids: Int[Array, "B T"], segment_ids: Int[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns one vector a row; raises ModuleError for a model without a pooler."""
        if self.pooler is None:
            message = f"{self.path} has no pooler; set pooler=FirstTokenPooler.Config()"
            raise ModuleError(message)
        return self.pooler(self.encode(input_ids, Sequences(segment_ids=segment_ids)))

    def _before_head(self, x: Float[Array, "B T E"]) -> tuple[Float[Array, "B T E"], Head]:
        if self.head is None:
            message = f"{self.path} has no head to predict tokens with; set head=BiasedTiedHead.Config()"
            raise ModuleError(message)
        if self.transform is not None:
            return self.transform(x), self.head
        return x if self.pooler is None else self.pooler.each(x), self.head
