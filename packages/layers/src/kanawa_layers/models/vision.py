"""The vision transformer: a tower from images to tokens, and the classifier on top of it."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import ImageBatch, Norm, Recognises, Sequences, Stack
from kanawa.errors import ModuleError

from kanawa_layers.basic.dropout import Dropout
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import LayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.basic.pooling import Pooling
from kanawa_layers.models.own_proportions import at_places, patches_of
from kanawa_layers.positions.absolute import AbsolutePositions, LearnedPositions


class ImageEncoder(kn.Module):
    """Pictures to a sequence of vectors; what `ImageClassifier` has in its slot `encoder`."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT

        @property
        def num_prefix(self) -> int:
            """How many vectors come before those of places."""
            return 0

        @property
        def has_class_token(self) -> bool:
            """Whether the first vector stands for the whole picture."""
            return False

    @classmethod
    def image_shape(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns {"images": (height, width, channels)} that data are to have; {} where any will do."""
        del cfg
        return {}

    @classmethod
    def patch_side(cls, cfg: Any) -> int | None:
        """Returns the side of patches in which pictures keep their proportions; None where `grids` are refused."""
        del cfg
        return None

    @abc.abstractmethod
    def forward(self, images: Num[Array, "B H W C"], grids: Int[Array, "B 2"] | None = None) -> Float[Array, "B T E"]:
        """Returns the vectors; integers are pixels, 0 to 255. `grids` are those of `ImageBatch`."""

    @kn.nowrap
    @abc.abstractmethod
    def flops_per_image(self, shape: tuple[int, ...]) -> float:
        """Returns forward matmul FLOPs of an image [height, width, channels]."""


class PictureTower(ImageEncoder):
    """Images to tokens, of which `Config.num_prefix` come before those of the patches, rows of them one by one."""

    class Config(ImageEncoder.Config):
        pass

    @classmethod
    @abc.abstractmethod
    def patch_size(cls, cfg: Any) -> int:
        """Returns the side of a patch in pixels."""


class VisionTransformer(PictureTower):
    """Images to tokens (Dosovitskiy et al. 2020, arXiv:2010.11929): a class token, registers, then the patches.

    `num_registers` learned tokens, which no loss reads, take what a model would else store in patches that show little
    (Darcet et al. 2023, arXiv:2309.16588). Positions are those of the class token and the patches. `pre_norm` comes
    before the stack (CLIP's), `norm` after it.
    """

    pixels: PixelNorm
    patches: PatchEmbedding
    positions: AbsolutePositions | None
    pre_norm: Norm | None
    dropout: Dropout | None
    stack: Stack
    norm: Norm | None

    class Config(PictureTower.Config):
        pixels: PixelNorm.Config = PixelNorm.Config()
        patches: PatchEmbedding.Config = PatchEmbedding.Config()
        class_token: bool = True
        num_registers: kn.Count = 0
        positions: AbsolutePositions.Config | None = None
        pre_norm: Norm.Config | None = None
        dropout: Dropout.Config | None = None
        stack: Stack.Config = kn.REQUIRED
        norm: Norm.Config | None = LayerNorm.Config()

        @property
        def num_prefix(self) -> int:
            """How many tokens come before those of the patches."""
            return self.class_token + self.num_registers

        @property
        def has_class_token(self) -> bool:
            """As configured."""
            return self.class_token

    @classmethod
    def image_shape(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns that of square images where there is a learned position for each patch."""
        if not isinstance(cfg.positions, LearnedPositions.Config):
            return {}
        side = math.isqrt(cfg.positions.max_length - cfg.class_token) * cfg.patches.patch_size
        return {"images": (side, side, cfg.patches.num_channels)}

    @classmethod
    def patch_size(cls, cfg: Any) -> int:
        """Returns that of the patches."""
        return int(cfg.patches.patch_size)

    @classmethod
    def patch_side(cls, cfg: Any) -> int | None:
        """Returns that of the patches where there is a learned position for each."""
        return cls.patch_size(cfg) if isinstance(cfg.positions, LearnedPositions.Config) else None

    def setup(self) -> None:
        """Declares the parts, `class_token` [embed], zero, and `registers` [registers, embed]."""
        cfg = self.config
        self.add_child("pixels", cfg.pixels)
        self.add_child("patches", cfg.patches, output_dim=cfg.input_dim)
        if cfg.class_token:
            self.add_param("class_token", (cfg.input_dim,), axes=("embed",), init=kn.zeros, weight_decay=0.0)
        if cfg.num_registers:
            shape = (cfg.num_registers, cfg.input_dim)
            self.add_param("registers", shape, axes=(None, "embed"), init=kn.normal(0.02), weight_decay=0.0)
        self.add_child("positions", cfg.positions, output_dim=cfg.input_dim)
        self.add_child("dropout", cfg.dropout)
        for name in ("pre_norm", "stack", "norm"):
            self.add_child(name, getattr(cfg, name), input_dim=cfg.input_dim)

    def forward(self, images: Num[Array, "B H W C"], grids: Int[Array, "B 2"] | None = None) -> Float[Array, "B T E"]:
        """Returns the last stream of all tokens, normalised; `Config.num_prefix` of them come before the patches.

        With `grids` positions are interpolated to each picture's, and no token sees the padding after its patches.
        """
        cfg = self.config
        x = self.patches(self.pixels(images))
        rows, patches, width = x.shape
        if cfg.class_token:
            token = jnp.broadcast_to(self.param("class_token")[None, None], (rows, 1, width))
            x = jnp.concatenate([token, x], axis=1)
        if self.positions is not None:
            positions = self.positions(jnp.arange(x.shape[1], dtype=jnp.int32)[None])
            x = x + (positions if grids is None else at_places(positions, grids, cfg.class_token))
        if cfg.num_registers:
            registers = jnp.broadcast_to(self.param("registers")[None], (rows, cfg.num_registers, width))
            x = jnp.concatenate([x[:, : cfg.class_token], registers, x[:, cfg.class_token :]], axis=1)
        for part in (self.pre_norm, self.dropout):
            x = x if part is None else part(x)
        sequences = Sequences()
        if grids is not None:
            seen = jnp.pad(patches_of(grids, patches), ((0, 0), (cfg.num_prefix, 0)), constant_values=True)
            sequences = Sequences(segment_ids=seen.astype(jnp.int32))
        x, _ = self.stack(kn.constrain(x, ("batch", "length", "embed")), sequences)
        return x if self.norm is None else self.norm(x)

    @kn.nowrap
    def flops_per_image(self, shape: tuple[int, ...]) -> float:
        """Returns forward matmul FLOPs of an image [height, width, channels], each token seeing all."""
        patches = math.prod(shape[:2]) // self.config.patches.patch_size**2
        tokens = patches + self.config.num_prefix
        return float(self.patches.flops_per_token(tokens) * patches + self.stack.flops_per_token(tokens) * tokens)


def refuse_grids(encoder: ImageEncoder, grids: Int[Array, "B 2"] | None) -> None:
    """Raises ModuleError where pictures keep their proportions, for an encoder of pictures of one size."""
    if grids is not None:
        message = (
            f"{encoder.path} takes pictures of one size, and ImageBatch.grids is set; leave data.own_proportions out"
        )
        raise ModuleError(message)


def image_shape(cfg: Any) -> Mapping[str, tuple[int, ...]]:
    """Returns {"images": (height, width, channels)} of a tower's config for images of one size; {} of others."""
    return tower_of(cfg).image_shape(cfg)


def tower_of(cfg: Any) -> type[PictureTower]:
    """Returns the class of a tower's config."""
    kind: type[PictureTower] = cfg._target
    return kind


class ImageClassifier(Recognises):
    """Classifies by the class token, or where there is a `pooling` by what it makes of the patches."""

    batch = ImageBatch

    encoder: ImageEncoder
    pooling: Pooling | None
    head: Linear

    class Config(Recognises.Config):
        input_dim: kn.Size = kn.REQUIRED
        num_classes: kn.Size = kn.REQUIRED
        #: What the classes are called, where that is known; `--data` sets both to those of the data.
        class_names: tuple[str, ...] = ()
        label_smoothing: kn.Partial = 0.0
        encoder: ImageEncoder.Config = kn.REQUIRED
        pooling: Pooling.Config | None = None
        head: Linear.Config = Linear.Config(bias=True)

        def check(self) -> list[str]:
            """Returns what there would be nothing to classify by."""
            problems = []
            if self.pooling is None and not self.encoder.has_class_token:
                problems.append("encoder has no class token, and pooling is None; set pooling=MeanPooling.Config()")
            if self.class_names and len(self.class_names) != self.num_classes:
                problems.append(f"class_names has {len(self.class_names)} names for {self.num_classes} classes")
            return problems

    @classmethod
    def row_shapes(cls, cfg: "ImageClassifier.Config") -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of the images that the encoder names."""
        return image_shape(cfg.encoder)

    @classmethod
    def patch_side(cls, cfg: "ImageClassifier.Config") -> int | None:
        """Returns that of the encoder."""
        return tower_of(cfg.encoder).patch_side(cfg.encoder)

    def setup(self) -> None:
        """Declares the encoder, the pooling and the head."""
        cfg = self.config
        self.add_child("encoder", cfg.encoder, input_dim=cfg.input_dim)
        self.add_child("pooling", cfg.pooling, input_dim=cfg.input_dim)
        shapes: dict[str, Any] = {
            "input_shape": (cfg.input_dim,),
            "output_shape": (cfg.num_classes,),
            # How many classes there are is for the data to say: no mesh has to divide them.
            "axes": ("embed", None),
        }
        self.add_child("head", cfg.head, **shapes)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the encoder, and of the head once."""
        return self.encoder.flops_per_image(shapes["images"]) + self.head.flops_per_token(1)

    def predict(
        self, images: Num[Array, "B H W C"], grids: Int[Array, "B 2"] | None = None
    ) -> Float[Array, "B classes"]:
        """Returns fp32 logits of the classes, for pixels 0 to 255 or images that are normalised already."""
        x = self.encoder(images) if grids is None else self.encoder(images, grids)
        patches = x[:, self.config.encoder.num_prefix :]
        valid = None if grids is None else patches_of(grids, patches.shape[1])
        pooled = x[:, 0] if self.pooling is None else self.pooling(patches, valid)
        return self.head(pooled).astype(jnp.float32)

    def recognise(self, batch: ImageBatch) -> Int[Array, " B"]:
        """Returns the likeliest classes."""
        return jnp.argmax(self.predict(batch.images, batch.grids), axis=-1)

    def forward(self, batch: ImageBatch) -> None:
        """Adds the mean cross entropy of the images, and records the accuracy."""
        logits = self.predict(batch.images, batch.grids)
        targets = jax.nn.one_hot(batch.target_ids, logits.shape[-1], dtype=jnp.float32)
        smoothing = self.config.label_smoothing if self.train else 0.0
        targets = (1.0 - smoothing) * targets + smoothing / logits.shape[-1]
        nats = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
        count = jnp.sum(batch.loss_weights)
        self.add_loss("cross_entropy", jnp.sum(nats * batch.loss_weights), count, primary=True)
        correct = (jnp.argmax(logits, axis=-1) == batch.target_ids).astype(jnp.float32)
        self.record("accuracy", kn.Mean(jnp.sum(correct * batch.loss_weights), count))
