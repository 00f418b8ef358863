"""Speech to labels that are aligned with frames: a Conformer or another stack, and a head of CTC or a transducer."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Hearing, Sequences, SpeechBatch, Stack, Transcribes, Transcripts, Writing
from kanawa.errors import ModuleError

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.speech.heads import AlignmentHead, CTCHead
from kanawa_layers.speech.log_mel import LogMel
from kanawa_layers.speech.subsampling import ConvSubsampling


class SpeechRecogniser(Transcribes):
    """Trains on a SpeechBatch by the loss of its head. The last of `vocab_size` ids is the head's blank, no label.

    Evaluation decodes greedily, and records the errors of labels over the labels that were said.
    """

    batch = SpeechBatch

    features: LogMel
    subsampling: ConvSubsampling
    dropout: Dropout | None
    stack: Stack
    head: AlignmentHead

    class Config(Transcribes.Config):
        input_dim: kn.Size = kn.REQUIRED
        features: LogMel.Config = LogMel.Config()
        subsampling: ConvSubsampling.Config = ConvSubsampling.Config()
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        head: AlignmentHead.Config = CTCHead.Config()

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("features", cfg.features)
        self.add_child("subsampling", cfg.subsampling, num_bands=cfg.features.num_mels, output_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)
        self.add_child("stack", cfg.stack, input_dim=cfg.input_dim)
        self.add_child("head", cfg.head, input_dim=cfg.input_dim, vocab_size=cfg.vocab_size, blank=cfg.vocab_size - 1)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the frames, which see all others, and of the head."""
        frames = shapes["audio"][0] // self.config.features.hop
        read = self.subsampling.frames_after(frames)
        stack = self.stack.flops_per_token(read) * read
        return self.subsampling.flops_per_row(frames) + stack + self.head.flops_per_row(read, *shapes["target_ids"])

    def encode(
        self, input_features: Float[Array, "B T M"], num_frames: Int[Array, " B"]
    ) -> tuple[Float[Array, "B T2 E"], Int[Array, " B"]]:
        """Returns the stream of features, and how many of its frames are each row's own."""
        x, num_frames = self.subsampling(input_features.astype(kn.current_plan().precision.compute), num_frames)
        x = x if self.dropout is None else self.dropout(x)
        segment_ids = (jnp.arange(x.shape[1])[None] < num_frames[:, None]).astype(jnp.int32)
        x = kn.constrain(x, ("batch", "length", "embed"))
        return self.stack(x, Sequences(segment_ids=segment_ids))[0], num_frames

    def forward(self, batch: SpeechBatch) -> None:
        """Adds the head's loss over the targets. Rows too short for their targets are counted and don't train."""
        x, num_frames = self._heard(batch.audio, batch.audio_lengths)
        num_targets = jnp.sum(batch.loss_weights > 0, axis=1)
        nats = self.head(x, num_frames, batch.target_ids, num_targets)
        real, possible = batch.audio_lengths > 0, jnp.isfinite(nats)
        learned = real & possible
        total = jnp.sum(jnp.where(learned, nats, 0.0))
        self.add_loss("alignment", total, jnp.sum(jnp.where(learned, num_targets, 0)), primary=True)
        rows, short = (jnp.sum(mask, dtype=jnp.float32) for mask in (real, real & ~possible))
        self.record("too_short", kn.Mean(short, rows))
        if not self.train:
            found = self.head.labels(x, num_frames, batch.target_ids.shape[1])
            errors = edit_distances(batch.target_ids, num_targets, found, jnp.sum(found >= 0, axis=1))
            wrong, said = (jnp.sum(jnp.where(real, n, 0), dtype=jnp.float32) for n in (errors, num_targets))
            self.record("label_error_rate", kn.Mean(wrong, said))

    @classmethod
    def hearing_of(cls, cfg: Any) -> Hearing:
        """Returns rows of any length, and no prompt."""
        return Hearing(cfg.features.sample_rate)

    def transcribe(
        self, audio: Float[Array, "B N"], audio_lengths: Int[Array, " B"], most: int, writing: Writing | None = None
    ) -> Transcripts:
        """Returns the labels of sound by greedy decoding; no rule of `writing` is of use to it."""
        del writing
        x, num_frames = self._heard(audio, audio_lengths)
        return Transcripts(self.head.labels(x, num_frames, most))

    def hear(
        self, audio: Float[Array, "B N"], audio_lengths: Int[Array, " B"]
    ) -> tuple[Float[Array, "B T V"], Int[Array, " B"]]:
        """Returns fp32 log-probabilities of the frames of sound, for `prefix_beam`, and how many are each row's own."""
        x, num_frames = self._heard(audio, audio_lengths)
        return jax.nn.log_softmax(self._ctc().logits(x)), num_frames

    def predict(
        self, input_features: Float[Array, "B T M"], num_frames: Int[Array, " B"] | None = None
    ) -> Float[Array, "B T2 V"]:
        """Returns fp32 logits of every frame; raises ModuleError for a head that has none without labels."""
        if num_frames is None:
            num_frames = jnp.full(input_features.shape[:1], input_features.shape[1], jnp.int32)
        return self._ctc().logits(self.encode(input_features, num_frames)[0])

    def _ctc(self) -> CTCHead:
        if isinstance(self.head, CTCHead):
            return self.head
        message = f"{self.path}: {type(self.head).__name__} has no logits of frames alone; call transcribe"
        raise ModuleError(message)

    def _heard(
        self, audio: Float[Array, "B N"], audio_lengths: Int[Array, " B"]
    ) -> tuple[Float[Array, "B T E"], Int[Array, " B"]]:
        return self.encode(*self.features(audio, audio_lengths))


def edit_distances(
    said: Int[Array, "B L"], num_said: Int[Array, " B"], heard: Int[Array, "B M"], num_heard: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Returns the fewest changes, insertions and deletions between the labels of each row; the rest is padding."""
    places = jnp.arange(heard.shape[1] + 1)[None]
    start = jnp.broadcast_to(places, (heard.shape[0], places.shape[1]))

    def next_label(row: Int[Array, "B M1"], step: tuple[jax.Array, jax.Array]) -> tuple[Int[Array, "B M1"], None]:
        label, number = step
        changed = row[:, :-1] + (heard != label[:, None]).astype(jnp.int32)
        new = jnp.concatenate([row[:, :1] + 1, jnp.minimum(row[:, 1:] + 1, changed)], axis=1)
        # Insertions: one more for each place to the right.
        new = jax.lax.cummin(new - places, axis=1) + places
        return jnp.where((number < num_said)[:, None], new, row), None

    last, _ = jax.lax.scan(next_label, start, (said.T, jnp.arange(said.shape[1])))
    return jnp.take_along_axis(last, num_heard[:, None], axis=1)[:, 0]
