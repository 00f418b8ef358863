"""Speech to text by an encoder-decoder: Whisper (Radford et al. 2022, arXiv:2212.04356)."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, Model, Sequences, SpeechBatch

from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.models.encoder_decoder import Tower
from kanawa_layers.models.head import Head, TiedHead
from kanawa_layers.models.token_loss import CrossEntropy, TokenLoss
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions
from kanawa_layers.speech.frames import ConvStem, StoredSinusoids
from kanawa_layers.speech.log_mel import LogMel


class SpeechToText(Model):
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

    class Config(Model.Config):
        vocab_size: kn.Size = kn.REQUIRED
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

    def transcribe(
        self, samples: Float[Array, "B N"], max_tokens: int, prompt_ids: Int[Array, "B P"] | None = None
    ) -> Int[Array, "B L"]:
        """Returns `write` of sound: samples at the sample rate of `features`, from -1 to 1."""
        return self.write(self.encode_features(self.features(samples)[0]), max_tokens, prompt_ids)

    def write(
        self, memory: Float[Array, "B S E"], max_tokens: int, prompt_ids: Int[Array, "B P"] | None = None
    ) -> Int[Array, "B L"]:
        """Returns the likeliest next id, `max_tokens` times after the prompt (None: `prompt_ids` of the config).

        After its end, a row holds `end_id`.
        """
        rows, end = memory.shape[0], self.config.end_id
        if prompt_ids is None:
            prompt_ids = jnp.broadcast_to(jnp.asarray(self.config.prompt_ids, jnp.int32)[None], (rows, self._start))
        start = prompt_ids.shape[1]
        spec = self.cache_spec(rows, start + max_tokens, str(memory.dtype))
        caches = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda x: isinstance(x, kn.ParamSpec)
        )
        first, caches = self._step(prompt_ids, Sequences(lengths=jnp.zeros((), jnp.int32), memory=memory), caches)
        ids = jnp.full((rows, max_tokens), end, jnp.int32).at[:, 0].set(first)

        def unfinished(carry: tuple[Any, ...]) -> jax.Array:
            number, last, _ids, _caches = carry
            more: jax.Array = (number < max_tokens) & jnp.any(last != end)
            return more

        def one_more(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            number, last, ids, caches = carry
            new, caches = self._step(last[:, None], Sequences(lengths=start + number - 1), caches)
            new = jnp.where(last == end, end, new)
            return number + 1, new, ids.at[:, number].set(new), caches

        carry = (jnp.ones((), jnp.int32), first, ids, caches)
        found: jax.Array = kn.while_loop(unfinished, one_more, carry)[2]
        return found

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

    def _step(self, ids: Int[Array, "B T"], sequences: Sequences, caches: Any) -> tuple[Int[Array, " B"], Any]:
        x, caches = self._decoded(ids, sequences, caches)
        best: jax.Array = jnp.argmax(self.head.logits(x[:, -1:])[:, 0], axis=-1)
        return best.astype(jnp.int32), caches

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
