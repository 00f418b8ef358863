"""Pictures told from texts and captioned by one model: CoCa (Yu et al. 2022, arXiv:2205.01917)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Batch, DataSource, ImageTextBatch, Norm, Recognises, Sequences

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.models.encoder_decoder import Tower, decoded_flops
from kanawa_layers.models.head import Head, UntiedHead
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.models.two_towers import ZERO_SHOT, TwoTowers


class QueryPooling(kn.Module):
    """`num_queries` learned queries, of which each attends to all tokens of a picture, then a norm."""

    attention: CrossAttention
    norm: Norm

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        num_queries: kn.Size = 256
        attention: CrossAttention.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()

    def setup(self) -> None:
        """Declares `queries` [queries, embed] and the parts."""
        cfg = self.config
        shape = (cfg.num_queries, cfg.output_dim)
        self.add_param("queries", shape, axes=(None, "embed"), init=kn.normal(0.02), weight_decay=0.0)
        self.add_child("attention", cfg.attention, input_dim=cfg.output_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.output_dim)

    def forward(self, x: Float[Array, "B P E"]) -> Float[Array, "B Q F"]:
        """Returns one vector a query."""
        queries = jnp.repeat(self.param("queries")[None], x.shape[0], axis=0)
        return self.norm(self.attention(queries, Sequences(memory=x))[0])


class CoCa(Recognises):
    """Learns which text belongs to which picture, and to write it: the losses of TwoTowers and of captions, summed.

    `towers.text` is the decoder's lower half, which sees no picture and must be causal; `decoder` is its upper half,
    which attends to the picture through `pool`. Each token's state predicts the next one, a learned `start` the first.
    """

    batch = ImageTextBatch

    towers: TwoTowers
    pool: QueryPooling
    decoder: Tower
    head: Head
    captions: TokenLoss

    class Config(Recognises.Config):
        towers: TwoTowers.Config = kn.REQUIRED
        pool: QueryPooling.Config = kn.REQUIRED
        decoder: Tower.Config = kn.REQUIRED
        head: Head.Config = UntiedHead.Config()
        #: Captions count twice as much as pairs, as published.
        captions: TokenLoss.Config = CrossEntropy.Config(coefficient=2.0)

        def check(self) -> list[str]:
            """Returns what is wrong with the text tower."""
            return [] if self.towers.text.end_id is not None else ["towers.text.end_id is None; captions need an end"]

    @classmethod
    def row_shapes(cls, cfg: "CoCa.Config") -> dict[str, tuple[int, ...]]:
        """Returns those of the towers."""
        return TwoTowers.row_shapes(cfg.towers)

    @classmethod
    def data_problem(cls, cfg: "CoCa.Config", source: DataSource) -> str:
        """Returns what is wrong with the texts of a source."""
        return TwoTowers.data_problem(cfg.towers, source).replace("model.text", "model.towers.text")

    def setup(self) -> None:
        """Declares the parts and `start` [embed]."""
        cfg = self.config
        width = cfg.towers.text.input_dim
        self.add_child("towers", cfg.towers)
        self.add_child("pool", cfg.pool, input_dim=cfg.towers.input_dim, output_dim=width)
        self.add_child("decoder", cfg.decoder, input_dim=width)
        self.add_child("head", cfg.head, input_dim=width, vocab_size=cfg.towers.text.vocab_size)
        self.add_child("captions", cfg.captions)
        self.add_param("start", (width,), axes=("embed",), init=kn.normal(0.02), weight_decay=0.0)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the towers, of the queries, and of the decoder's tokens."""
        (length,), queries, attention = shapes["input_ids"], self.pool.config.num_queries, self.pool.attention
        patches = self.towers.image.patches.config.patch_size
        read = shapes["images"][0] * shapes["images"][1] // patches**2
        projected = sum(part.flops_per_token(1) for part in (attention.key, attention.value))
        pooled: float = attention.flops_per_token(read) * queries + projected * (read - queries)
        return self.towers.flops_per_row(shapes) + pooled + decoded_flops(self.decoder, self.head, length, queries)

    def forward(self, batch: ImageTextBatch) -> None:
        """Adds the losses of pairs and of captions."""
        tokens, states, accuracy = self.towers.forward_and_read(batch)
        if accuracy is not None:
            self.record(ZERO_SHOT, accuracy)
        weights = jnp.where((batch.segment_ids > 0) & (batch.loss_weights > 0)[:, None], 1.0, 0.0)
        targets = Batch(batch.input_ids, batch.input_ids, None, None, weights)
        self.captions(self._decoded(states, self.pool(tokens)), self.head, targets)

    def recognise(self, batch: ImageTextBatch) -> Int[Array, " B"]:
        """Returns the nearest labels; without labels, the nearest texts of the batch."""
        return self.towers.recognise(batch)

    def predict(self, input_ids: Int[Array, "B T"], images: Num[Array, "B H W C"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits of each token of a text from those before it and the picture."""
        states, tokens = self.towers.text_states(input_ids), self.pool(self.towers.image_tokens(images))
        return self.head.logits(self._decoded(states, tokens))

    def caption(self, images: Num[Array, "B H W C"], most: int) -> Int[Array, "B T"]:
        """Returns the likeliest tokens one by one, at most `most`, -1 from a text's end on.

        Each token reads the text anew, without a cache: for captions of a few dozen tokens.
        """
        memory, end = self.pool(self.towers.image_tokens(images)), self.config.towers.text.end_id
        ids = jnp.full((images.shape[0], most), end, jnp.int32)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            at, ended, ids = carry
            x = self._decoded(self.towers.text_states(ids), memory)
            here = jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1)
            new = jnp.argmax(self.head.logits(here)[:, 0], axis=-1).astype(jnp.int32)
            new = jnp.where(ended, end, new)
            return at + 1, ended | (new == end), jax.lax.dynamic_update_slice_in_dim(ids, new[:, None], at, axis=1)

        def unfinished(carry: tuple[Any, ...]) -> jax.Array:
            more: jax.Array = (carry[0] < most) & ~jnp.all(carry[1])
            return more

        start = (jnp.zeros((), jnp.int32), jnp.zeros(images.shape[0], bool), ids)
        _, _, ids = kn.while_loop(unfinished, step, start)
        return jnp.where(jnp.cumsum(ids == end, axis=1) > 0, -1, ids)

    def _decoded(self, states: Float[Array, "B T F"], memory: Float[Array, "B Q F"]) -> Float[Array, "B T F"]:
        start = jnp.broadcast_to(self.param("start").astype(states.dtype)[None, None], states[:, :1].shape)
        x = jnp.concatenate([start, states[:, :-1]], axis=1)
        decoded: jax.Array = self.decoder(x, Sequences(memory=memory))[0]
        return decoded
