"""A language model and a data source of core code alone, so that each package can be tested without the others.

pytest.ini puts this folder on the path, and the metadata beside this file makes it a plugin: the experiment "tiny-lm".
Processes that a test starts find it with `PYTHONPATH=FOLDER`.

The model has every feature the contracts speak of and nothing else: stacked layers, state-free caches (a running
sum), remat tags, metrics and a loss. It learns, but that is not its purpose.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.arrays.constrain import constrain
from kanawa.arrays.init import normal, zeros
from kanawa.arrays.spec import ParamSpec
from kanawa.config import FROM_PARENT, Config
from kanawa.contracts import Batch, CausalLM, DataSource, DrawnTargets, FeedForward, Sequences, token_of_each_row
from kanawa.contracts.batch import DRAWN_ACCURACY
from kanawa.module import Mean, Module, Sum, nowrap, scan, unstack

FOLDER = str(Path(__file__).parent)


class TinyFeedForward(FeedForward):
    """tanh(x @ up) @ down."""

    class Config(FeedForward.Config):
        hidden_dim: int = 16

    def setup(self) -> None:
        """Declares both matrices."""
        cfg = self.config
        self.add_param("up", (cfg.input_dim, cfg.hidden_dim), axes=("embed", "mlp"))
        self.add_param("down", (cfg.hidden_dim, cfg.input_dim), axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens."""
        del sequences
        return jnp.tanh(self.tag("hidden", x @ self.param("up"))) @ self.param("down")


class TinyLayer(Module):
    """Adds to each token the mean of all tokens before and at it, transformed."""

    feed_forward: FeedForward

    class Config(Module.Config):
        input_dim: int = FROM_PARENT
        feed_forward: FeedForward.Config = TinyFeedForward.Config()

    def setup(self) -> None:
        """Declares the feed-forward."""
        self.add_child("feed_forward", self.config.feed_forward, input_dim=self.config.input_dim)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, total: Float[Array, "B 1 E"] | None
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B 1 E"]]:
        """Returns the new residual stream and the running sum after the last token."""
        before = jnp.zeros_like(x[:, :1]) if total is None else total
        sums = jnp.cumsum(x, axis=1) + before
        counts = (sequences.token_positions(x.shape[1]) + 1).astype(x.dtype)
        mean = sums / jnp.broadcast_to(counts, x.shape[:2])[..., None]
        return x + self.feed_forward(mean, sequences), sums[:, -1:]


class TinyLM(CausalLM):
    """A causal model of `num_layers` scanned layers with a tied head."""

    layer: TinyLayer

    class Config(CausalLM.Config):
        vocab_size: int = 64
        input_dim: int = 8
        num_layers: int = 2
        layer: TinyLayer.Config = TinyLayer.Config()

    def setup(self) -> None:
        """Declares the table and the layers."""
        cfg = self.config
        shape = (cfg.vocab_size, cfg.input_dim)
        self.add_param("table", shape, axes=("vocab", "embed"), init=normal(0.1))
        self.add_child("layer", cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)

    def embed(self, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the rows of the table."""
        del sequences
        rows = jnp.take(self.param("table"), input_ids, axis=0)
        return constrain(rows, ("batch", "length", "embed"))

    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits."""
        return (x @ self.param("table").T).astype(jnp.float32)

    def head_and_loss(self, x: Float[Array, "B T E"], batch: Batch) -> None:
        """Adds the cross entropy and records the mean logit."""
        logits = self.logits(x)
        targets = batch.target_ids
        if isinstance(batch, DrawnTargets):
            targets = jax.random.categorical(self.next_key(), logits)
            self.record(DRAWN_ACCURACY, Mean.of(targets == batch.target_ids))
        chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        nats = (jax.nn.logsumexp(logits, -1) - chosen) * batch.loss_weights
        self.add_loss("cross_entropy", nats.sum(), batch.loss_weights.sum())
        self.record("logit", Mean.of(logits))

    def forward(self, batch: Batch) -> None:
        """Adds the loss of a batch."""
        sequences = Sequences(batch.positions, batch.segment_ids)

        def body(x: Array, _: None) -> tuple[Array, None]:
            return self.layer(x, sequences, None)[0], None

        x, _ = scan(body, self.embed(batch.input_ids, sequences), over="layer")
        self.head_and_loss(x, batch)

    def decode(
        self,
        input_ids: Int[Array, "B T"],
        sequences: Sequences,
        caches: Any,
        last: Int[Array, "*rows"] | None = None,
    ) -> tuple[Float[Array, "B some V"], Any]:
        """Returns logits and the running sums."""
        sums: list[Array] = []

        def body(x: Array, _: None) -> tuple[Array, None]:
            x, total = self.layer(x, sequences, None if caches is None else caches[len(sums)])
            sums.append(total)
            return x, None

        x, _ = scan(body, self.embed(input_ids, sequences), over="layer", unrolled=True)
        return self.logits(token_of_each_row(x, last)), tuple(sums)

    @nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns one running sum a layer; rows must be in step, because padding would enter the sum."""
        del length
        one = ParamSpec((rows, 1, self.config.input_dim), ("batch", None, "embed"), dtype, zeros)
        return (one,) * self.config.num_layers

    @nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with one tree a layer."""
        return {**params, "layer": unstack(params["layer"], self.config.num_layers)}


class TellingLM(TinyLM):
    """Counts in its metrics which rows of `CountingTokens` a step has learned from: `row_K` for the first token K."""

    def forward(self, batch: Batch) -> None:
        """Adds the loss of a batch, and the counts."""
        counts = jnp.bincount(batch.input_ids[:, 0], length=self.config.vocab_size)
        for number in range(self.config.vocab_size):
            self.record(f"row_{number}", Sum(counts[number].astype(jnp.float32)))
        super().forward(batch)


class CountingTokens(DataSource):
    """Row r counts up from r modulo the vocabulary: learnable, endless, and each row tells its index."""

    class Config(DataSource.Config):
        sequence_length: int = 16
        vocab_size: int = 64
        num_rows: int | None = None
        held_out_rows: int = 0

    @property
    def num_rows(self) -> int | None:
        """The configured count."""
        return self.config.num_rows

    def held_out(self) -> DataSource | None:
        """The first `held_out_rows` rows, where there are any."""
        rows = self.config.held_out_rows
        return self.config.clone().set(num_rows=rows, held_out_rows=0).build() if rows else None

    @property
    def vocab_size(self) -> int:
        """The configured size."""
        return self.config.vocab_size

    @property
    def digest(self) -> str:
        """The settings that decide the rows."""
        cfg = self.config
        return f"counting-{cfg.sequence_length}-{cfg.vocab_size}-{cfg.seed}"

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see DataSource."""
        cfg = self.config
        if index < 0 or (cfg.num_rows is not None and index >= cfg.num_rows):
            message = f"row {index} doesn't exist"
            raise IndexError(message)
        tokens = (np.arange(cfg.sequence_length + 1) + index + cfg.seed) % cfg.vocab_size
        tokens = tokens.astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "target_ids": tokens[1:],
            "positions": np.arange(cfg.sequence_length, dtype=np.int32),
            "segment_ids": np.ones(cfg.sequence_length, np.int32),
            "loss_weights": np.ones(cfg.sequence_length, np.float32),
        }


def tiny() -> Config:
    """Returns the experiment: 100 steps of 8 rows of 16 tokens, saved every 20."""
    from kanawa_runtime.learn.learner import Learner
    from kanawa_runtime.learn.schedules import Constant
    from kanawa_runtime.train.policies import CheckpointPolicy
    from kanawa_runtime.train.trainer import Trainer

    cfg = Trainer.Config(
        model=TinyLM.Config(),
        data=CountingTokens.Config(),
        batch_size=8,
        steps=100,
        learner=Learner.Config(schedule=Constant.Config(peak=3e-2)),
        checkpoints=CheckpointPolicy(every_steps=20),
    )
    # Steps of a millisecond: on a busy machine a save would be left out because the one before is still written.
    cfg.checkpointer.set(patience_seconds=300.0)
    return cfg


def telling() -> Config:
    """Returns the experiment that tells which rows it has seen; an epoch is eight steps."""
    return tiny().set(model=TellingLM.Config())
