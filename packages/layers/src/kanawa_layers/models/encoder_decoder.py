"""The encoder-decoder of T5: two towers, each a stack, its last norm, and a relative bias that its layers share."""

from collections.abc import Mapping
from typing import Any

import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, EncoderDecoderBatch, Model, Norm, Positions, Sequences, Stack

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.head import Head, UntiedHead
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.positions.absolute import AbsolutePositions


class Tower(kn.Module):
    """norm(stack(x)). `relative_bias` is shared under that name, for SharedRelativeBias in the layers' attention."""

    relative_bias: Positions | None
    dropout: Dropout | None
    stack: Stack
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        num_heads: kn.Size | None = None
        relative_bias: Positions.Config | None = None
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = RMSNorm.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"stack": "", "norm": "norm", "relative_bias": "relative_bias"}
        )

        def check(self) -> list[str]:
            """Returns what is missing for the shared bias."""
            if self.relative_bias is None:
                return []
            # Not overridden: such positions, rotary ones for example, rotate queries and keys instead.
            if getattr(self.relative_bias._target, "bias", None) is Positions.bias:
                kind = type(self.relative_bias).__qualname__
                return [
                    f"relative_bias is {kind}, which adds nothing to logits that layers could share; set it to None"
                ]
            return [] if self.num_heads else ["a shared relative_bias needs num_heads, that of the attention layers"]

    def setup(self) -> None:
        """Declares the parts and shares the bias."""
        cfg = self.config
        self.add_child("relative_bias", cfg.relative_bias, num_heads=cfg.num_heads)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        if self.relative_bias is not None:
            self.share("relative_bias", self.relative_bias)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the normalised stream and the extended caches."""
        x = x if self.dropout is None else self.dropout(x)
        x, caches = self.stack(x, sequences, caches)
        return self.norm(x), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the stack's cache layout."""
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer."""
        return {**params, "stack": self.stack.unstacked(params["stack"])}


def decoded_flops(decoder: Tower, head: Head, written: int, read: int) -> float:
    """Returns forward matmul FLOPs of a decoder's tokens and their logits over a memory of `read` tokens.

    The memory's keys and values count as if it had `written` tokens.
    """
    # A layer has as many heads for its own tokens, of which a query sees half, as for the memory.
    context = ((written + 1) / 2 + read) / 2
    return (decoder.flops_per_token(context) + head.flops_per_token(context)) * written


class EncoderDecoderLM(Model):
    """Trains on an EncoderDecoderBatch; the decoder attends to the encoder's last stream through cross attention.

    `positions` are added to both sides' embeddings, each counted from 0.
    """

    batch = EncoderDecoderBatch

    embedding: Embedding
    positions: AbsolutePositions | None
    encoder: Tower
    decoder: Tower
    head: Head
    loss: TokenLoss

    class Config(Model.Config):
        vocab_size: kn.Size = kn.REQUIRED
        input_dim: kn.Size = kn.REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config | None = None
        encoder: Tower.Config = kn.REQUIRED
        decoder: Tower.Config = kn.REQUIRED
        head: Head.Config = UntiedHead.Config()
        loss: TokenLoss.Config = CrossEntropy.Config()

    def setup(self) -> None:
        """Declares the parts and shares the embedding with the head."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("encoder", cfg.encoder, input_dim=cfg.input_dim)
        self.add_child("decoder", cfg.decoder, input_dim=cfg.input_dim)
        self.add_child("head", cfg.head, input_dim=cfg.input_dim, vocab_size=cfg.vocab_size)
        self.add_child("loss", cfg.loss)
        self.share("embedding", self.embedding)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the encoder's tokens, which see all others, and of the decoder's."""
        (read,), (written,) = shapes["input_ids"], shapes["decoder_input_ids"]
        return self.encoder.flops_per_token(read) * read + decoded_flops(self.decoder, self.head, written, read)

    def encode(self, input_ids: Int[Array, "B S"], sequences: Sequences) -> Float[Array, "B S E"]:
        """Returns the memory, which the decoder attends to."""
        # Both sides call the same embedding; call names separate their outputs and random draws.
        with kn.call_name("encoder"):
            x = self._embedded(input_ids, sequences)
        return self.encoder(x, sequences)[0]

    def forward(self, batch: EncoderDecoderBatch) -> None:
        """Adds the cross entropy of the weighted target tokens."""
        memory = self.encode(batch.input_ids, Sequences(batch.positions, batch.segment_ids))
        sequences = Sequences(
            positions=batch.decoder_positions,
            segment_ids=batch.decoder_segment_ids,
            memory=memory,
            memory_segment_ids=batch.segment_ids,
        )
        x, _ = self._decoded(batch.decoder_input_ids, sequences)
        ids = batch.decoder_input_ids
        targets = Batch(ids, batch.target_ids, batch.decoder_positions, batch.decoder_segment_ids, batch.loss_weights)
        self.loss(x, self.head, targets)

    def predict(
        self,
        input_ids: Int[Array, "B S"],
        decoder_input_ids: Int[Array, "B T"],
        segment_ids: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns fp32 logits of every decoder token, without a cache."""
        memory = self.encode(input_ids, Sequences(segment_ids=segment_ids))
        x, _ = self._decoded(decoder_input_ids, Sequences(memory=memory, memory_segment_ids=segment_ids))
        return self.head.logits(x)

    def decode(
        self, decoder_input_ids: Int[Array, "B T"], sequences: Sequences, caches: Any
    ) -> tuple[Float[Array, "B T V"], Any]:
        """Returns logits of the new tokens and the extended caches.

        The first call passes `sequences.memory`, which the caches store; later calls leave it None.
        """
        x, caches = self._decoded(decoder_input_ids, sequences, caches)
        return self.head.logits(x), caches

    def _decoded(
        self, ids: Int[Array, "B T"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        with kn.call_name("decoder"):
            x = self._embedded(ids, sequences)
        return self.decoder(x, sequences, caches)

    def _embedded(self, ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(sequences.token_positions(x.shape[1]))
        return kn.constrain(x, ("batch", "length", "embed"))

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the decoder's cache layout."""
        return self.decoder.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer in the decoder."""
        return {**params, "decoder": self.decoder.unstacked(params["decoder"])}
