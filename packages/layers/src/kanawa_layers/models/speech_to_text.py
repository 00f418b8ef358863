"""Speech to text by an encoder-decoder: Whisper (Radford et al. 2022, arXiv:2212.04356)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, Hearing, Sequences, SpeechBatch, Transcribes, Transcripts, Writing

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.models.encoder_decoder import Tower, decoded_flops
from kanawa_layers.models.head import Head, TiedHead
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions
from kanawa_layers.speech.frames import ConvStem, StoredSinusoids
from kanawa_layers.speech.log_mel import LogMel
from kanawa_layers.speech.writing import allowed_logits, drawn


class SpeechToText(Transcribes):
    """Trains on a SpeechBatch: the decoder reads `prompt_ids` and the targets, and writes the targets and `end_id`.

    The encoder reads the features of the whole row, its silence included, as Whisper does. `positions` are the
    decoder's, `frame_positions` the encoder's.
    """

    batch = SpeechBatch

    features: LogMel
    stem: ConvStem
    frame_positions: AbsolutePositions
    encoder: Tower
    embedding: Embedding
    positions: AbsolutePositions
    decoder: Tower
    head: Head
    loss: TokenLoss

    class Config(Transcribes.Config):
        input_dim: kn.Size = kn.REQUIRED
        prompt_ids: tuple[kn.Count, ...] = kn.REQUIRED
        end_id: kn.Count = kn.REQUIRED
        features: LogMel.Config = LogMel.Config()
        stem: ConvStem.Config = ConvStem.Config()
        frame_positions: AbsolutePositions.Config = StoredSinusoids.Config(max_length=1500)
        encoder: Tower.Config = kn.REQUIRED
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config = LearnedPositions.Config(max_length=448)
        decoder: Tower.Config = kn.REQUIRED
        head: Head.Config = TiedHead.Config()
        loss: TokenLoss.Config = CrossEntropy.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the prompt."""
            return [] if self.prompt_ids else ["prompt_ids is empty; the decoder needs an id to start from"]

    def setup(self) -> None:
        """Declares the parts and shares the embedding with the head."""
        cfg = self.config
        width = cfg.input_dim
        self.add_child("features", cfg.features)
        self.add_child("stem", cfg.stem, input_dim=cfg.features.num_mels, output_dim=width)
        self.add_child("frame_positions", cfg.frame_positions, output_dim=width)
        self.add_child("encoder", cfg.encoder, input_dim=width)
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=width)
        self.add_child("positions", cfg.positions, output_dim=width)
        self.add_child("decoder", cfg.decoder, input_dim=width)
        self.add_child("head", cfg.head, input_dim=width, vocab_size=cfg.vocab_size)
        self.add_child("loss", cfg.loss)
        self.share("embedding", self.embedding)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the stem, of the encoder's frames, which see all others, and of the decoder's tokens."""
        frames = shapes["audio"][0] // self.config.features.hop
        read, written = -(-frames // 2), shapes["target_ids"][0] + self._start
        encoded: float = self.stem.flops_per_row(frames) + self.encoder.flops_per_token(read) * read
        return encoded + decoded_flops(self.decoder, self.head, written, read)

    def encode_features(self, features: Float[Array, "B T M"]) -> Float[Array, "B S E"]:
        """Returns the memory of log-mel features, half as long."""
        x = self.stem(features.astype(kn.current_plan().precision.compute))
        x = x + self.frame_positions(jnp.arange(x.shape[1], dtype=jnp.int32)[None])
        memory: jax.Array = self.encoder(kn.constrain(x, ("batch", "length", "embed")), Sequences())[0]
        return memory

    def forward(self, batch: SpeechBatch) -> None:
        """Adds the cross entropy of the targets and the end."""
        features, _ = self.features(batch.audio, batch.audio_lengths)
        memory = self.encode_features(features)
        tokens = self._tokens(batch)
        x, _ = self._decoded(tokens.input_ids, Sequences(memory=memory))
        self.loss(x, self.head, tokens)

    def predict(
        self, input_features: Float[Array, "B M T"], decoder_input_ids: Int[Array, "B L"]
    ) -> Float[Array, "B L V"]:
        """Returns fp32 logits of every decoder token for features as WhisperFeatureExtractor makes them."""
        memory = self.encode_features(jnp.swapaxes(input_features, 1, 2))
        x, _ = self._decoded(decoder_input_ids, Sequences(memory=memory))
        return self.head.logits(x)

    @classmethod
    def hearing_of(cls, cfg: Any) -> Hearing:
        """Returns rows of as much sound as the encoder has frames for; half of the decoder's positions are written."""
        longest = cfg.positions.max_length
        samples = 2 * cfg.frame_positions.max_length * cfg.features.hop
        return Hearing(cfg.features.sample_rate, samples, longest - longest // 2, longest // 2, tuple(cfg.prompt_ids))

    def transcribe(
        self, audio: Float[Array, "B N"], audio_lengths: Int[Array, " B"], most: int, writing: Writing | None = None
    ) -> Transcripts:
        """Returns `write` of sound; rows that are shorter than the encoder's are followed by silence."""
        short = (self.hearing_of(self.config).row_samples or 0) - audio.shape[1]
        features = self.features(jnp.pad(audio, ((0, 0), (0, max(0, short)))), audio_lengths)[0]
        return self.write(self.encode_features(features), most, writing)

    def write(self, memory: Float[Array, "B S E"], most: int, writing: Writing | None = None) -> Transcripts:
        """Returns what the decoder writes after the prompt (None: the config's, greedily), at most `most` ids a row.

        Prompts of different lengths share a batch, so each is read one id at a time.
        """
        rows, end = memory.shape[0], self.config.end_id
        writing = self._plain_writing(rows) if writing is None else writing
        (_, prompt), lengths = writing.prompt_ids.shape, writing.prompt_lengths
        spec = self.cache_spec(rows, prompt + most, str(memory.dtype))
        caches = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda x: isinstance(x, kn.ParamSpec)
        )
        ids = jnp.pad(writing.prompt_ids, ((0, 0), (0, most)), constant_values=end)

        def step(carry: tuple[Any, ...], memory: Float[Array, "B S E"] | None = None) -> tuple[Any, ...]:
            at, ended, ids, log_probs, caches = carry
            here = jax.lax.dynamic_slice_in_dim(ids, at, 1, axis=1)
            x, caches = self._decoded(here, Sequences(lengths=at, memory=memory), caches)
            logits = self.head.logits(x)[:, 0]
            given = jax.lax.dynamic_slice_in_dim(ids, at + 1, 1, axis=1)[:, 0]
            chosen = jnp.argmax(jnp.where(writing.choices, logits, -jnp.inf), axis=-1).astype(jnp.int32)
            logits = allowed_logits(logits, ids, at + 1, writing, end)
            new = drawn(logits, at + 1, writing)
            gained = jnp.take_along_axis(jax.nn.log_softmax(logits), new[:, None], axis=-1)[:, 0]
            is_prompt, is_full = at + 1 < lengths, at + 1 >= lengths + most
            ended = ended | is_full
            log_probs = jnp.where(is_prompt | ended, log_probs, log_probs + gained)
            new = jnp.where(is_prompt, jnp.where(given < 0, chosen, given), jnp.where(ended, end, new))
            ids = jax.lax.dynamic_update_slice_in_dim(ids, new[:, None], at + 1, axis=1)
            return at + 1, ended | (~is_prompt & (new == end)), ids, log_probs, caches

        def unfinished(carry: tuple[Any, ...]) -> jax.Array:
            more: jax.Array = (carry[0] < prompt + most - 1) & ~jnp.all(carry[1])
            return more

        nothing = jnp.zeros((rows,), jnp.float32)
        carry = step((jnp.zeros((), jnp.int32), lengths < 0, ids, nothing, caches), memory)
        _, _, ids, log_probs, _ = kn.while_loop(unfinished, step, carry)
        places = lengths[:, None] + jnp.arange(most, dtype=jnp.int32)[None]
        written = jnp.take_along_axis(ids, places, axis=1)
        over = jnp.cumsum(written == end, axis=1) > 0
        return Transcripts(jnp.where(over, -1, written), ids[:, :prompt], log_probs)

    def _plain_writing(self, rows: int) -> Writing:
        prompt, everything = jnp.asarray(self.config.prompt_ids, jnp.int32), jnp.ones(self.config.vocab_size, bool)
        each = jnp.zeros(rows, jnp.int32)
        return Writing(
            prompt_ids=jnp.broadcast_to(prompt, (rows, self._start)),
            prompt_lengths=each + self._start,
            choices=everything,
            allowed=everything,
            allowed_first=everything,
            first_time=each - 1,
            last_begin=jnp.zeros((), jnp.int32),
            temperature=each.astype(jnp.float32),
            seed=each.astype(jnp.uint32),
        )

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the decoder's cache layout."""
        return self.decoder.cache_spec(rows, length, dtype)

    def _decoded(
        self, ids: Int[Array, "B T"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        x = self.embedding(ids) + self.positions(sequences.token_positions(ids.shape[1]))
        return self.decoder(kn.constrain(x, ("batch", "length", "embed")), sequences, caches)

    @property
    def _start(self) -> int:
        return len(self.config.prompt_ids)

    def _tokens(self, batch: SpeechBatch) -> Batch:
        """Returns rows of the prompt and the targets, of which the targets and the end are to be predicted."""
        rows, length = batch.target_ids.shape
        real, ends = (batch.audio_lengths > 0)[:, None], jnp.sum(batch.loss_weights > 0, axis=1, keepdims=True)
        prompt = jnp.broadcast_to(jnp.asarray(self.config.prompt_ids, jnp.int32)[None], (rows, self._start))
        at = jnp.arange(length + 1)[None]
        written = jnp.where(at < ends, jnp.pad(batch.target_ids, ((0, 0), (0, 1))), self.config.end_id).astype(
            jnp.int32
        )
        input_ids = jnp.concatenate([prompt, written[:, :-1]], axis=1)
        targets = jnp.concatenate([prompt[:, 1:], written], axis=1)
        weights = jnp.where(real & (at <= ends), 1.0, 0.0)
        return Batch(input_ids, targets, None, None, jnp.pad(weights, ((0, 0), (self._start - 1, 0))))
