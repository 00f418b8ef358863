"""Two towers: one reads the first half of a row, one the second, and each finds its other half in the batch."""

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.contracts import Model, Sequences, Stack
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.recipes.llama import llama


class TwoTowers(Model):
    """Contrastive loss of in-batch negatives (van den Oord et al. 2018, arXiv:1807.03748)."""

    embedding: Embedding
    left: Stack
    right: Stack

    class Config(Model.Config):
        vocab_size: kn.Size = kn.REQUIRED
        input_dim: kn.Size = kn.REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        left: Stack.Config = kn.REQUIRED
        right: Stack.Config = kn.REQUIRED

    def setup(self):
        """Declares one embedding and both towers."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("left", cfg.left, input_dim=cfg.input_dim)
        self.add_child("right", cfg.right, input_dim=cfg.input_dim)

    def forward(self, batch):
        """Adds the loss of finding each row's second half among those of the batch."""
        middle = batch.input_ids.shape[1] // 2
        halves = batch.input_ids[:, :middle], batch.input_ids[:, middle : 2 * middle]
        ends = []
        for tower, ids in zip((self.left, self.right), halves, strict=True):
            out, _ = tower(self.embedding(ids), Sequences())
            mean = out.astype(jnp.float32).mean(1)
            ends.append(mean / jnp.linalg.norm(mean, axis=-1, keepdims=True))
        scores = 10.0 * ends[0] @ ends[1].T
        weights = (batch.loss_weights.sum(1) > 0).astype(jnp.float32)
        nll = -jnp.diagonal(jax.nn.log_softmax(scores))
        self.add_loss("contrastive", (nll * weights).sum(), weights.sum(), 1.0, primary=True)


def two_towers():
    """Returns small towers of a Llama's layers."""
    tower = llama(num_layers=1, input_dim=32, num_heads=2, num_kv_heads=1, hidden_dim=64, vocab_size=300).stack
    return TwoTowers.Config(vocab_size=300, input_dim=32, left=tower, right=tower.clone())


def experiment():
    """Returns their training on Python's own source."""
    cfg = kn.experiment("llama-tiny").config.clone()
    cfg.set(model=two_towers(), steps=3, batch_size=4)
    cfg.data.set(sequence_length=32)
    cfg.data.tokenizer.set(vocab_size=300)
    return cfg
