"""The decoder-only language model: embedding, stack, norm, head and loss, each a slot."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import (
    ADAPTERS,
    Batch,
    CausalLM,
    Labels,
    Norm,
    RepresentsText,
    Sequences,
    Stack,
    token_of_each_row,
)
from kanawa.module import Outputs

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.models.head import Head, UntiedHead, labels_of_head
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.positions.absolute import AbsolutePositions


class DecoderLM(CausalLM, RepresentsText):
    """A causal language model; `head` TiedHead shares the embedding's table."""

    embedding: Embedding
    stack: Stack
    norm: Norm
    head: Head
    positions: AbsolutePositions | None
    loss: TokenLoss

    class Config(CausalLM.Config, RepresentsText.Config):
        embedding: Embedding.Config = Embedding.Config()
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = RMSNorm.Config()
        head: Head.Config = UntiedHead.Config()
        positions: AbsolutePositions.Config | None = None
        loss: TokenLoss.Config = CrossEntropy.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"embedding": "model.embed_tokens", "stack": "model", "norm": "model.norm", "head": "lm_head"},
            # Older checkpoints store this buffer; it follows from the config.
            ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
        )

    @classmethod
    def batch_of(cls, cfg: Any) -> type:
        """Returns the record of the loss."""
        kind = cfg.loss._target
        return cls.batch if kind is None else kind.batch

    @classmethod
    def hidden_token(cls, cfg: Any) -> int | None:
        """Returns that of the loss."""
        token: int | None = cfg.loss._target.hidden_token(cfg.loss)
        return token

    def setup(self) -> None:
        """Declares the parts and shares the embedding with the head."""
        cfg = self.config
        sizes = {"input_dim": cfg.input_dim, "vocab_size": cfg.vocab_size}
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        self.add_child("head", cfg.head, **sizes)
        self.add_child("loss", cfg.loss)
        # A tied head finds the table by this name, anywhere in the tree.
        self.share("embedding", self.embedding)

    def embed(self, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the embeddings of tokens, or those of `sequences`, with those of any positions."""
        x = self.embedding(input_ids)
        if sequences.embeddings is not None and sequences.is_embedded is not None:
            # What comes after the embeddings is for the first layers.
            own = sequences.embeddings[..., : x.shape[-1]].astype(x.dtype)
            x = jnp.where(sequences.is_embedded[..., None], own, x)
        if self.positions is not None:
            x = x + self.positions(jnp.broadcast_to(sequences.token_positions(x.shape[1]), x.shape[:2]))
        return kn.constrain(x, ("batch", "length", "embed"))

    def head_and_loss(self, x: Float[Array, "B T E"], batch: Batch) -> None:
        """Adds the cross entropy of the normalised stream."""
        self.loss(self.norm(x), self.head, batch)

    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits of the normalised stream."""
        return self.head.logits(self.norm(x))

    def forward(self, batch: Batch) -> None:
        """Adds the training loss of a batch to the outputs."""
        packed: tuple[Any, ...] = (batch.input_ids, batch.positions, batch.segment_ids)
        learned = self.loss.learned_length(batch)
        if learned is None or not self.train:
            self.head_and_loss(self._packed_states(*packed), batch)
            return
        # Of the rest no gradients are wanted, so that no backward pass goes through it.
        context: Any = kn.current_context()
        fixed, rest = jax.lax.stop_gradient(context.params), (x[:, learned:] for x in packed)
        measured, outputs = kn.functional(self, "packed_states")(fixed, context.current_state(), *rest, train=False)
        context.collector.absorb(Outputs(kernels=outputs.kernels))
        x = self._packed_states(*(x[:, :learned] for x in packed))
        self.head_and_loss(jnp.concatenate([x, jax.lax.stop_gradient(measured)], axis=1), batch)

    def packed_states(
        self, input_ids: Int[Array, "B T"], positions: Int[Array, "B T"], segment_ids: Int[Array, "B T"]
    ) -> Float[Array, "B T E"]:
        """Returns what the stack makes of packed rows, before the norm."""
        return self._packed_states(input_ids, positions, segment_ids)

    @kn.nowrap
    def _packed_states(self, input_ids: Array, positions: Array | None, segment_ids: Array | None) -> Array:
        sequences = Sequences(positions=positions, segment_ids=segment_ids)
        x: Array = self.stack(self.embed(input_ids, sequences), sequences)[0]
        return x

    def predict(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits for whole rows, each one sequence, without a cache."""
        sequences = Sequences()
        x, _ = self.stack(self.embed(input_ids, sequences), sequences)
        return self.logits(x)

    def states(
        self,
        input_ids: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        token_types: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T E"]:
        """Returns the normalised stream; tokens have no types here."""
        del token_types
        sequences = Sequences(segment_ids=segment_ids)
        x, _ = self.stack(self.embed(input_ids, sequences), sequences)
        return self.norm(x)

    def label_logits(self, states: Float[Array, "B T E"]) -> Float[Array, "B T L"]:
        """Returns fp32 logits of the labels."""
        return self.head.logits(states)

    @classmethod
    def labels_of(cls, cfg: Any) -> Labels | None:
        """Returns the labels of the head."""
        return labels_of_head(cfg.head, first=False)

    def decode(
        self,
        input_ids: Int[Array, "B T"],
        sequences: Sequences,
        caches: Any,
        last: Int[Array, "*rows"] | None = None,
    ) -> tuple[Float[Array, "B some V"], Any]:
        """Returns logits of the new tokens, or of token or tokens `last` of each row, and the extended caches."""
        if sequences.adapters is not None:
            self.offer(ADAPTERS, sequences.token_adapters(input_ids.shape[1]))
        x, caches = self.stack(self.embed(input_ids, sequences), sequences, caches)
        return self.logits(token_of_each_row(x, last)), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the stack's cache layout."""
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer in the stack."""
        return {**params, "stack": self.stack.unstacked(params["stack"])}
