"""Images and texts in one space: CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343)."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Bool, Float, Int, Num
from kanawa.arrays.init import Constant
from kanawa.contracts import DataSource, FeedForward, ImageTextBatch, Norm, Recognises, Sequences, Stack

from kanawa_layers.attention.cross import CrossAttention
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.pooling import Pooling
from kanawa_layers.losses.passed_around import sigmoid_contrastive_over_devices, softmax_contrastive_over_devices
from kanawa_layers.models.vision import VisionTransformer, image_shape
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions

ZERO_SHOT = "zero_shot_accuracy"


class ContrastiveLoss(kn.Module):
    """Scores of pairs from cosines, and their loss; rows may be spread over devices."""

    @abc.abstractmethod
    def scores(self, cosines: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Returns logits of cosines."""

    @abc.abstractmethod
    def forward(
        self, images: Float[Array, "N D"], texts: Float[Array, "N D"], valid: Bool[Array, " N"]
    ) -> Float[Array, " N"]:
        """Returns each pair's loss for vectors of length 1."""


class SoftmaxPairs(ContrastiveLoss):
    """CLIP's: each side picks its pair among all others. The scale is learned as its logarithm, at most ln 100."""

    class Config(ContrastiveLoss.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"logit_scale": "logit_scale"})

    def setup(self) -> None:
        """Declares `logit_scale`, at first ln(1 / 0.07)."""
        self.add_param("logit_scale", (), axes=(), init=Constant(math.log(1 / 0.07)), weight_decay=0.0)

    def scores(self, cosines: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Returns scaled cosines."""
        return self._scale() * cosines

    def forward(
        self, images: Float[Array, "N D"], texts: Float[Array, "N D"], valid: Bool[Array, " N"]
    ) -> Float[Array, " N"]:
        """Returns the mean of both directions' cross entropy."""
        return softmax_contrastive_over_devices(images, texts, self._scale(), valid)

    def _scale(self) -> Float[Array, ""]:
        return jnp.exp(jnp.minimum(self.param("logit_scale", jnp.float32), math.log(100.0)))


class SigmoidPairs(ContrastiveLoss):
    """SigLIP's: each pair is right or wrong by itself. Starts at scale 10 and bias -10."""

    class Config(ContrastiveLoss.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(tensors={"logit_scale": "logit_scale", "logit_bias": "logit_bias"})

    def setup(self) -> None:
        """Declares `logit_scale`, a logarithm, and `logit_bias`."""
        self.add_param("logit_scale", (1,), axes=(None,), init=Constant(math.log(10.0)), weight_decay=0.0)
        self.add_param("logit_bias", (1,), axes=(None,), init=Constant(-10.0), weight_decay=0.0)

    def scores(self, cosines: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Returns scaled cosines and the bias."""
        scale, bias = self._numbers()
        return scale * cosines + bias

    def forward(
        self, images: Float[Array, "N D"], texts: Float[Array, "N D"], valid: Bool[Array, " N"]
    ) -> Float[Array, " N"]:
        """Returns each image's summed binary loss against all texts."""
        return sigmoid_contrastive_over_devices(images, texts, *self._numbers(), valid)

    def _numbers(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return jnp.exp(self.param("logit_scale", jnp.float32)[0]), self.param("logit_bias", jnp.float32)[0]


class AttentionPooling(Pooling):
    """A learned query attends to all tokens, then a feed-forward (Lee et al. 2019, arXiv:1810.00825; SigLIP)."""

    attention: CrossAttention
    norm: Norm
    feed_forward: FeedForward

    class Config(Pooling.Config):
        attention: CrossAttention.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()
        feed_forward: FeedForward.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"attention": "attention", "norm": "layernorm", "feed_forward": "mlp"},
            tensors={"probe": kn.foreign.Tensor(name="probe", form=kn.foreign.Permuted.Config(order=(-1, -1, 0)))},
        )

    def setup(self) -> None:
        """Declares `probe` [embed] and the parts."""
        width = self.config.input_dim
        self.add_param("probe", (width,), axes=("embed",), init=kn.normal(0.02), weight_decay=0.0)
        for name in ("attention", "norm", "feed_forward"):
            self.add_child(name, getattr(self.config, name), input_dim=width)

    def forward(self, x: Float[Array, "B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, "B E"]:
        """Returns one vector a row."""
        segments = None if valid is None else valid.astype(jnp.int32)
        sequences = Sequences(memory=x, memory_segment_ids=segments)
        probe = jnp.broadcast_to(self.param("probe")[None, None], (x.shape[0], 1, x.shape[2]))
        y, _ = self.attention(probe, sequences)
        return (y + self.feed_forward(self.norm(y), Sequences()))[:, 0]


class TextTower(kn.Module):
    """Texts to a vector each: that of the first `end_id`, or of a row's last place where that is None, projected."""

    embedding: Embedding
    positions: AbsolutePositions
    stack: Stack
    norm: Norm
    projection: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.REQUIRED
        output_dim: kn.Size = kn.FROM_PARENT
        vocab_size: kn.Size = kn.REQUIRED
        end_id: kn.Count | None = None
        embedding: Embedding.Config = Embedding.Config()
        positions: AbsolutePositions.Config = kn.REQUIRED
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config = LayerNorm.Config()
        projection: Linear.Config = Linear.Config()

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        self.add_child("embedding", cfg.embedding, vocab_size=cfg.vocab_size, output_dim=cfg.input_dim)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        for name in ("stack", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)
        add_linear(self, "projection", cfg.input_dim, cfg.output_dim, ("embed", None))

    def forward(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B D"]:
        """Returns the projected vectors; padding after the text is read as the released models read it."""
        return self._vector(self._stream(input_ids), input_ids)

    def states_and_vector(self, input_ids: Int[Array, "B T"]) -> tuple[Float[Array, "B T E"], Float[Array, "B D"]]:
        """Returns each token's state after the last norm, and the projected vectors."""
        x = self._stream(input_ids)
        with kn.call_name("states"):
            return self.norm(x), self._vector(x, input_ids)

    def _stream(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        x = self.embedding(input_ids) + self.positions(jnp.arange(input_ids.shape[1], dtype=jnp.int32)[None])
        x, _ = self.stack(kn.constrain(x, ("batch", "length", "embed")), Sequences())
        return x

    def _vector(self, x: Float[Array, "B T E"], input_ids: Int[Array, "B T"]) -> Float[Array, "B D"]:
        if self.config.end_id is None:
            x = x[:, -1]
        else:
            end = jnp.argmax(input_ids == self.config.end_id, axis=1)
            x = jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0]
        return self.projection(self.norm(x))

    @kn.nowrap
    def flops_per_text(self, length: int) -> float:
        """Returns forward matmul FLOPs of a text of `length` tokens, each seeing all."""
        return self.stack.flops_per_token(length) * length + self.projection.flops_per_token(1)


class TwoTowers(Recognises):
    """Learns from an ImageTextBatch which text belongs to which image. `pooling` None takes the class token."""

    batch = ImageTextBatch

    image: VisionTransformer
    pooling: Pooling | None
    projection: Linear | None
    text: TextTower
    loss: ContrastiveLoss

    class Config(Recognises.Config):
        input_dim: kn.Size = kn.REQUIRED
        output_dim: kn.Size = kn.REQUIRED
        image: VisionTransformer.Config = kn.REQUIRED
        pooling: Pooling.Config | None = None
        projection: Linear.Config | None = Linear.Config()
        text: TextTower.Config = kn.REQUIRED
        loss: ContrastiveLoss.Config = SoftmaxPairs.Config()

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of both towers and their projections; the batch's logits are left out."""
        image = 0.0 if self.projection is None else self.projection.flops_per_token(1)
        return self.image.flops_per_image(shapes["images"]) + image + self.text.flops_per_text(*shapes["input_ids"])

    @classmethod
    def row_shapes(cls, cfg: "TwoTowers.Config") -> dict[str, tuple[int, ...]]:
        """Returns the shape of the images, where it follows from the positions, and of the texts."""
        positions = cfg.text.positions
        texts = {"input_ids": (positions.max_length,)} if isinstance(positions, LearnedPositions.Config) else {}
        return {**image_shape(cfg.image), **texts}

    @classmethod
    def data_problem(cls, cfg: "TwoTowers.Config", source: DataSource) -> str:
        """Returns what is wrong with texts of other ids, or without the one that the text tower reads."""
        text, tokenizer = cfg.text, source.tokenizer
        if source.vocab_size > text.vocab_size:
            return f"data has {source.vocab_size} token ids, but model.text.vocab_size is {text.vocab_size}"
        if tokenizer is None or text.end_id is None or text.end_id in tokenizer.stop_ids:
            return ""
        return (
            f"model.text.end_id is {text.end_id}, and texts of the data end with {list(tokenizer.stop_ids)}: train a "
            "folder with the model's own tokenizer, or set data.tokenizer_file to it"
        )

    def setup(self) -> None:
        """Declares both towers; `input_dim` is that of the image's."""
        cfg = self.config
        self.add_child("image", cfg.image, input_dim=cfg.input_dim)
        self.add_child("pooling", cfg.pooling, input_dim=cfg.input_dim)
        shapes: dict[str, Any] = {
            "input_shape": (cfg.input_dim,),
            "output_shape": (cfg.output_dim,),
            "axes": ("embed", None),
        }
        self.add_child("projection", cfg.projection, **shapes)
        self.add_child("text", cfg.text, output_dim=cfg.output_dim)
        self.add_child("loss", cfg.loss)

    def embed_images(self, images: Num[Array, "B H W C"]) -> Float[Array, "B D"]:
        """Returns fp32 vectors of length 1 for pixels 0 to 255, or images that are normalised already."""
        return self._image_vectors(self.image(images))

    def image_tokens(self, images: Num[Array, "B H W C"]) -> Float[Array, "B P E"]:
        """Returns the image tower's tokens, one a patch."""
        return self.image(images)[:, self.config.image.num_prefix :]

    def text_states(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T F"]:
        """Returns the text tower's states after its last norm."""
        return self.text.states_and_vector(input_ids)[0]

    def embed_texts(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B D"]:
        """Returns fp32 vectors of length 1."""
        return _unit(self.text(input_ids))

    def predict(self, input_ids: Int[Array, "M T"], images: Num[Array, "N H W C"]) -> Float[Array, "N M"]:
        """Returns the fp32 score of each image with each text: zero-shot labels are the best text of each image."""
        return self.loss.scores(self.embed_images(images) @ self.embed_texts(input_ids).T)

    def recognise(self, batch: ImageTextBatch) -> Int[Array, " B"]:
        """Returns the nearest labels; without labels, the nearest texts of the batch."""
        texts = self.embed_texts(batch.input_ids) if batch.label_ids is None else self._of_labels(batch.label_ids)
        return jnp.argmax(self.embed_images(batch.images) @ texts.T, axis=1)

    def forward(self, batch: ImageTextBatch) -> None:
        """Adds the mean loss of the pairs."""
        accuracy = self._compare(self.embed_images(batch.images), self.embed_texts(batch.input_ids), batch)
        if accuracy is not None:
            self.record(ZERO_SHOT, accuracy)

    def forward_and_read(
        self, batch: ImageTextBatch
    ) -> tuple[Float[Array, "B P E"], Float[Array, "B T F"], kn.Mean | None]:
        """Adds the loss as `forward` does; returns what `image_tokens` and `text_states` return, and the accuracy."""
        tokens = self.image(batch.images)
        states, texts = self.text.states_and_vector(batch.input_ids)
        accuracy = self._compare(self._image_vectors(tokens), _unit(texts), batch)
        return tokens[:, self.config.image.num_prefix :], states, accuracy

    def _image_vectors(self, x: Float[Array, "B P E"]) -> Float[Array, "B D"]:
        x = x[:, 0] if self.pooling is None else self.pooling(x[:, self.config.image.num_prefix :])
        return _unit(x if self.projection is None else self.projection(x))

    def _compare(
        self, images: Float[Array, "B D"], texts: Float[Array, "B D"], batch: ImageTextBatch
    ) -> kn.Mean | None:
        valid = batch.loss_weights > 0
        images, texts = (kn.constrain(x, ("batch", None)) for x in (images, texts))
        nats = self.loss(images, texts, valid)
        self.add_loss("contrastive", jnp.sum(jnp.where(valid, nats, 0.0)), jnp.sum(valid), primary=True)
        if batch.target_ids is not None and batch.label_ids is not None and not self.train:
            scores = images @ self._of_labels(batch.label_ids).T
            counted = valid & (batch.target_ids >= 0)
            correct = counted & (jnp.argmax(scores, axis=1) == batch.target_ids)
            sums = (jnp.sum(which, dtype=jnp.float32) for which in (correct, counted))
            return kn.Mean(*sums)
        return None

    def _of_labels(self, label_ids: Int[Array, "B M T"]) -> Float[Array, "M D"]:
        """Returns the vectors of the labels, which are the same in every row; a multiple of B rows can be sharded."""
        rows, labels, length = label_ids.shape
        count = -(-labels // rows) * rows
        padded = jnp.concatenate([label_ids[0], jnp.zeros((count - labels, length), label_ids.dtype)])
        with kn.call_name("labels"):
            return self.embed_texts(padded)[:labels]


def _unit(x: Float[Array, "B D"]) -> Float[Array, "B D"]:
    x32 = x.astype(jnp.float32)
    unit: jax.Array = x32 * jax.lax.rsqrt(jnp.sum(x32 * x32, axis=-1, keepdims=True))
    return unit
