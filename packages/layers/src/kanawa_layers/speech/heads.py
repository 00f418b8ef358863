"""Heads that learn which frames say which label: CTC, and the RNN transducer with its prediction network."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import SequenceMixer, Sequences

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.losses.ctc import ctc
from kanawa_layers.losses.transducer import transducer
from kanawa_layers.recurrent.lstm import LSTM
from kanawa_layers.speech.conformer import POINTWISE


class AlignmentHead(kn.Module):
    """Scores labels for the frames of an encoder; the slot `head` of a SpeechRecogniser. `blank` is no label."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        vocab_size: kn.Size = kn.FROM_PARENT
        blank: kn.Count = kn.FROM_PARENT

    @abc.abstractmethod
    def forward(
        self,
        x: Float[Array, "B T E"],
        num_frames: Int[Array, " B"],
        target_ids: Int[Array, "B L"],
        num_targets: Int[Array, " B"],
    ) -> Float[Array, " B"]:
        """Returns -log p(targets) of each row, fp32; infinite where its frames are too few."""

    @abc.abstractmethod
    def labels(self, x: Float[Array, "B T E"], num_frames: Int[Array, " B"], most: int) -> Int[Array, "B most"]:
        """Returns the labels of each row by greedy decoding, and -1 after its last."""

    @kn.nowrap
    @abc.abstractmethod
    def flops_per_row(self, num_frames: int, num_labels: int) -> float:
        """Returns forward matmul FLOPs of the loss of a row."""


class CTCHead(AlignmentHead):
    """Logits of each frame on its own; alignments merge repeats and drop blanks (Graves et al. 2006)."""

    output: Linear

    class Config(AlignmentHead.Config):
        output: Linear.Config = Linear.Config(bias=True, foreign=POINTWISE)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"output": ""})

    def setup(self) -> None:
        """Declares the projection to the labels and the blank."""
        add_linear(self, "output", self.config.input_dim, self.config.vocab_size, ("embed", "vocab"))

    @kn.nowrap
    def flops_per_row(self, num_frames: int, num_labels: int) -> float:
        """Returns those of each frame's logits."""
        del num_labels
        return self.output.flops_per_token(1) * num_frames

    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits of every frame."""
        return self.output(x).astype(jnp.float32)

    def forward(
        self,
        x: Float[Array, "B T E"],
        num_frames: Int[Array, " B"],
        target_ids: Int[Array, "B L"],
        num_targets: Int[Array, " B"],
    ) -> Float[Array, " B"]:
        """Returns the loss over all alignments."""
        return ctc(self.logits(x), num_frames, target_ids, num_targets, blank=self.config.blank)

    def labels(self, x: Float[Array, "B T E"], num_frames: Int[Array, " B"], most: int) -> Int[Array, "B most"]:
        """Returns the labels of the likeliest alignment."""
        ids = jnp.argmax(self.logits(x), axis=-1).astype(jnp.int32)
        changed = ids != jnp.pad(ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        said = changed & (ids != self.config.blank) & (jnp.arange(ids.shape[1])[None] < num_frames[:, None])
        # Labels move to the front; what isn't one, and what is too much, is written past the end and dropped.
        place = jnp.where(said, jnp.cumsum(said, axis=1) - 1, most)
        empty = jnp.full((ids.shape[0], most), -1, jnp.int32)
        return _placed(empty, place, ids)


class TransducerHead(AlignmentHead):
    """output(activation(frame + prediction)): the prediction reads the labels so far (Graves 2012, arXiv:1211.3711).

    Logits of all frames and labels, [B, T, L + 1, V], never exist together: `frames_together` frames at a time are
    made, reduced to two numbers a place, and made again in the backward pass. `most_per_frame` bounds decoding.
    """

    embedding: Embedding
    prediction: SequenceMixer
    from_frame: Linear
    from_prediction: Linear
    output: Linear

    class Config(AlignmentHead.Config):
        prediction_dim: kn.Size = 640
        joint_dim: kn.Size = 640
        frames_together: kn.Size = 16
        most_per_frame: kn.Size = 10
        activation: Callable[..., Array] = jnp.tanh
        embedding: Embedding.Config = Embedding.Config()
        prediction: SequenceMixer.Config = LSTM.Config()
        from_frame: Linear.Config = Linear.Config(bias=True)
        from_prediction: Linear.Config = Linear.Config()
        output: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={
                "embedding": "decoder.embedding",
                "prediction": "decoder.lstm",
                "from_frame": "encoder_projector",
                "from_prediction": "decoder.decoder_projector",
                "output": "joint.head",
            }
        )

    def setup(self) -> None:
        """Declares the prediction network and the joint one."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.prediction_dim)
        self.add_child("prediction", cfg.prediction, input_dim=cfg.prediction_dim)
        add_linear(self, "from_frame", cfg.input_dim, cfg.joint_dim, ("embed", "mlp"))
        add_linear(self, "from_prediction", cfg.prediction_dim, cfg.joint_dim, ("embed", "mlp"))
        add_linear(self, "output", cfg.joint_dim, cfg.vocab_size, ("mlp", "vocab"))

    @kn.nowrap
    def flops_per_row(self, num_frames: int, num_labels: int) -> float:
        """Returns those of frames, of what reads the labels, and of the logits at each pair of them."""
        read = num_labels + 1
        label = self.prediction.flops_per_token(1) + self.from_prediction.flops_per_token(1)
        pairs = self.output.flops_per_token(1) * num_frames * read
        return self.from_frame.flops_per_token(1) * num_frames + label * read + pairs

    def forward(
        self,
        x: Float[Array, "B T E"],
        num_frames: Int[Array, " B"],
        target_ids: Int[Array, "B L"],
        num_targets: Int[Array, " B"],
    ) -> Float[Array, " B"]:
        """Returns the loss over all alignments."""
        blank, together = self.config.blank, self.config.frames_together
        (batch, length, _), num_labels = x.shape, target_ids.shape[1]
        # Before the first label the network reads a blank.
        read = jnp.pad(target_ids, ((0, 0), (1, 0)), constant_values=blank)
        predicted, _ = self._predicted(read, Sequences(), None)
        pieces = -(-length // together)
        frames = jnp.pad(self.from_frame(x), ((0, 0), (0, pieces * together - length), (0, 0)))
        frames = jnp.moveaxis(frames.reshape(batch, pieces, together, -1), 1, 0)

        def piece(_: None, frames: Float[Array, "B C J"]) -> tuple[None, tuple[jax.Array, jax.Array]]:
            logits = self._joint(frames[:, :, None], predicted[:, None])
            logs = jax.nn.log_softmax(logits, axis=-1)
            index = jnp.broadcast_to(target_ids[:, None, :, None], (batch, together, num_labels, 1))
            return None, (logs[..., blank], jnp.take_along_axis(logs[:, :, :-1], index, axis=-1)[..., 0])

        _, lattices = kn.scan(piece, None, frames, remat=True)
        blanks, labels = (jnp.moveaxis(z, 0, 1).reshape(batch, pieces * together, -1)[:, :length] for z in lattices)
        return transducer(blanks, labels, num_frames, num_targets)

    def labels(self, x: Float[Array, "B T E"], num_frames: Int[Array, " B"], most: int) -> Int[Array, "B most"]:
        """Returns labels by taking the likeliest step: a label, or with a blank the next frame."""
        cfg, rows = self.config, x.shape[0]
        frames = self.from_frame(x)
        spec = self.prediction.cache_spec(rows, most + 1, str(x.dtype))
        cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
        zero = jnp.zeros((rows,), jnp.int32)
        predicted, cache = self._predicted(jnp.full((rows, 1), cfg.blank, jnp.int32), Sequences(lengths=zero), cache)
        ids = jnp.full((rows, most), -1, jnp.int32)

        def unfinished(carry: tuple[Any, ...]) -> jax.Array:
            return jnp.any(carry[0] < num_frames)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            at, count, since, ids, predicted, cache = carry
            frame = jnp.take_along_axis(frames, jnp.minimum(at, frames.shape[1] - 1)[:, None, None], axis=1)
            best = jnp.argmax(self._joint(frame, predicted)[:, 0], axis=-1).astype(jnp.int32)
            says = (best != cfg.blank) & (at < num_frames) & (count < most)
            ids = _placed(ids, jnp.where(says, count, most), best)
            new, grown = self._predicted(best[:, None], Sequences(lengths=count + 1), cache)
            chosen = [
                jax.tree.map(lambda a, b: jnp.where(says.reshape(-1, *(1,) * (a.ndim - 1)), a, b), *pair)
                for pair in ((new, predicted), (grown, cache))
            ]
            since = jnp.where(says, since + 1, 0)
            # A model that never says a blank would stay at one frame for ever.
            moves = ~says | (since >= cfg.most_per_frame)
            return (
                at + moves.astype(jnp.int32),
                count + says.astype(jnp.int32),
                jnp.where(moves, 0, since),
                ids,
                *chosen,
            )

        found: jax.Array = kn.while_loop(unfinished, step, (zero, zero, zero, ids, predicted, cache))[3]
        return found

    def _predicted(self, ids: Int[Array, "B L"], sequences: Sequences, cache: Any) -> tuple[Float[Array, "B L J"], Any]:
        y, cache = self.prediction(self.embedding(ids), sequences, cache)
        return self.from_prediction(y), cache

    def _joint(self, frames: Float[Array, "..."], predicted: Float[Array, "..."]) -> Float[Array, "... V"]:
        return self.output(self.config.activation(frames + predicted)).astype(jnp.float32)


def _placed(rows: Int[Array, "B L"], places: jax.Array, ids: jax.Array) -> Int[Array, "B L"]:
    """Returns the rows with ids at these places; those past the end are dropped."""
    placed: jax.Array = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(rows, places, ids)
    return placed
