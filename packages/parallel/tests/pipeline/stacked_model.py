"""A small causal model with a stack slot, of core code alone; its block records, adds a loss and keeps a cache."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.init import normal
from kanawa.contracts import Batch, Block, CausalLM, Sequences, Stack, token_of_each_row


class SumBlock(Block):
    """x + tanh(mean over the segment so far) @ w, and a small auxiliary loss weighted by tokens."""

    def setup(self) -> None:
        width = self.config.input_dim
        self.add_param("kernel", (width, width), axes=("embed", "mlp"))
        self.add_param("scale", (width,), axes=("norm",), init=normal(0.5))

    def forward(self, x: jax.Array, sequences: Sequences, cache: Any = None) -> tuple[jax.Array, Any]:
        length = x.shape[1]
        if cache is None:
            segments = sequences.segment_ids
            seen = jnp.tril(jnp.ones((length, length), x.dtype))[None]
            if segments is not None:
                seen = seen * (segments[:, :, None] == segments[:, None, :]).astype(x.dtype)
            total = jnp.einsum("bts,bse->bte", seen, x)
        else:
            total = jnp.cumsum(x, 1) + cache["sum"]
            cache = {"sum": total[:, -1:]}
        counts = (sequences.token_positions(length) + 1).astype(x.dtype)[..., None]
        mixed = jnp.tanh(total / counts) @ self.param("kernel")
        if self.train:
            weight = jnp.full((), x.shape[0] * length, jnp.float32)
            self.add_loss("size", jnp.sum(jnp.square(mixed)), weight, 0.01)
            self.record("largest", kn.Max(jnp.max(jnp.abs(mixed))))
        return x + mixed * self.param("scale")[None, None], cache

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, kn.ParamSpec]:
        del length
        return {"sum": kn.ParamSpec((rows, 1, self.config.input_dim), ("batch", None, "embed"), dtype)}


class StackedLM(CausalLM):
    """Tied embedding, a stack, cross entropy."""

    class Config(CausalLM.Config):
        vocab_size: int = 32
        input_dim: int = 16
        stack: Stack.Config = kn.REQUIRED

    def setup(self) -> None:
        cfg = self.config
        self.add_param("table", (cfg.vocab_size, cfg.input_dim), axes=("vocab", "embed"), init=normal(0.3))
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)

    def embed(self, input_ids: jax.Array, sequences: Sequences) -> jax.Array:
        del sequences
        return jnp.take(self.param("table"), input_ids, axis=0)

    def logits(self, x: jax.Array) -> jax.Array:
        return x @ self.param("table").T

    def head_and_loss(self, x: jax.Array, batch: Batch) -> None:
        logits = self.logits(x)
        chosen = jnp.take_along_axis(logits, batch.target_ids[..., None], -1)[..., 0]
        nats = (jax.nn.logsumexp(logits, -1) - chosen) * batch.loss_weights
        self.add_loss("cross_entropy", nats.sum(), batch.loss_weights.sum())

    def forward(self, batch: Batch) -> None:
        sequences = Sequences(batch.positions, batch.segment_ids)
        x, _ = self.stack(self.embed(batch.input_ids, sequences), sequences)
        self.head_and_loss(x, batch)

    def decode(
        self, input_ids: jax.Array, sequences: Sequences, caches: Any, last: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        x, caches = self.stack(self.embed(input_ids, sequences), sequences, caches)
        return self.logits(token_of_each_row(x, last)), caches

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        return self.stack.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        return params
