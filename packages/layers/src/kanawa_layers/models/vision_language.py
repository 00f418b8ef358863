"""A language model that reads pictures: a tower, a projector, and any decoder (LLaVA, Liu et al., arXiv:2304.08485)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Batch, CausalLM, ImageChatBatch, PictureTokens, ReadsPictures, Sequences

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.vision import VisionTransformer, image_shape


class PictureProjector(kn.Module):
    """down(activation(up(x))): a tower's patches as embeddings of the language model (LLaVA 1.5, arXiv:2310.03744)."""

    up: Linear
    down: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        activation: Callable[..., Array] = jax.nn.gelu
        up: Linear.Config = Linear.Config(bias=True)
        down: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"up": "linear_1", "down": "linear_2"})

    def setup(self) -> None:
        """Declares both projections."""
        cfg = self.config
        add_linear(self, "up", cfg.input_dim, cfg.output_dim, ("embed", "mlp"))
        add_linear(self, "down", cfg.output_dim, cfg.output_dim, ("mlp", "embed"))

    def forward(self, x: Float[Array, "N P E"]) -> Float[Array, "N P D"]:
        """Returns the projected patches."""
        return self.down(self.config.activation(self.up(x)))


class VisionLanguageModel(CausalLM, ReadsPictures):
    """A decoder in whose rows each `image_token_id` stands for one patch of the row's pictures, in order.

    The tower's patches, without its class token and registers, take the place of those tokens' embeddings. The
    sizes `vocab_size` and `input_dim` are those of `language`.
    """

    batch = ImageChatBatch

    tower: VisionTransformer
    projector: PictureProjector
    language: DecoderLM

    class Config(CausalLM.Config, ReadsPictures.Config):
        image_token_id: kn.Count = kn.REQUIRED
        tower_dim: kn.Size = kn.REQUIRED
        tower: VisionTransformer.Config = kn.REQUIRED
        projector: PictureProjector.Config = PictureProjector.Config()
        language: DecoderLM.Config = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"tower": "vision_tower", "projector": "multi_modal_projector", "language": "language_model"},
            # Files from before version 5 of transformers.
            aliases={"vision_tower.vision_model.": "vision_tower."},
        )

        def check(self) -> list[str]:
            """Returns where sizes differ from the language model's, or pictures have no fixed number of patches."""
            problems = [
                f"{name} is {getattr(self, name)}, and language.{name} is {getattr(self.language, name)}"
                for name in ("vocab_size", "input_dim")
                if getattr(self, name) != getattr(self.language, name)
            ]
            if self.image_token_id >= self.vocab_size:
                problems.append(f"image_token_id is {self.image_token_id}, and ids end at {self.vocab_size - 1}")
            if not image_shape(self.tower):
                problems.append("tower.positions aren't learned, so that pictures have no size; use LearnedPositions")
            return problems

    @classmethod
    def row_shapes(cls, cfg: "VisionLanguageModel.Config") -> Mapping[str, tuple[int, ...]]:
        """Returns nothing: rows have any number of pictures."""
        del cfg
        return {}

    @classmethod
    def picture_tokens(cls, cfg: "VisionLanguageModel.Config") -> PictureTokens:
        """Returns the tokens of a picture, one a patch."""
        shape = image_shape(cfg.tower)["images"]
        patches = math.prod(shape[:2]) // cfg.tower.patches.patch_size**2
        return PictureTokens(cfg.image_token_id, patches, shape)

    def setup(self) -> None:
        """Declares tower, projector and language model."""
        cfg = self.config
        self.add_child("tower", cfg.tower, input_dim=cfg.tower_dim)
        self.add_child("projector", cfg.projector, input_dim=cfg.tower_dim, output_dim=cfg.input_dim)
        self.add_child("language", cfg.language)

    def encode_pictures(self, images: Num[Array, "N H W C"]) -> Float[Array, "N P E"]:
        """Returns the embeddings of each picture's patches, for pixels 0 to 255 or normalised images."""
        return self.projector(self.tower(images)[:, self.config.tower.num_prefix :])

    def _seeing(self, input_ids: Int[Array, "B T"], images: Num[Array, "B N H W C"], sequences: Sequences) -> Sequences:
        """Returns `sequences` with the embeddings of the picture tokens."""
        rows, count = images.shape[:2]
        patches = self.encode_pictures(images.reshape(rows * count, *images.shape[2:]))
        patches = patches.reshape(rows, -1, patches.shape[-1])
        is_patch = input_ids == self.config.image_token_id
        place = jnp.clip(jnp.cumsum(is_patch, axis=1) - 1, 0, patches.shape[1] - 1)
        return sequences._replace(
            embeddings=jnp.take_along_axis(patches, place[..., None], axis=1), is_embedded=is_patch
        )

    def embed(self, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the language model's embeddings, and those of `sequences` where they are set."""
        return self.language.embed(input_ids, sequences)

    def head_and_loss(self, x: Float[Array, "B T E"], batch: Batch) -> None:
        """Adds the language model's loss."""
        self.language.head_and_loss(x, batch)

    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns the language model's fp32 logits."""
        return self.language.logits(x)

    def forward(self, batch: Any) -> None:
        """Adds the language model's loss of an ImageChatBatch."""
        tokens = Batch(*batch[1:])
        sequences = Sequences(positions=tokens.positions, segment_ids=tokens.segment_ids)
        sequences = self._seeing(tokens.input_ids, batch.images, sequences)
        x, _ = self.language.stack(self.embed(tokens.input_ids, sequences), sequences)
        self.head_and_loss(x, tokens)

    def predict(self, input_ids: Int[Array, "B T"], images: Num[Array, "B ..."] | None = None) -> Float[Array, "B T V"]:
        """Returns fp32 logits for whole rows with pictures [batch, pictures, height, width, channels], or one each."""
        sequences = Sequences()
        if images is not None:
            images = images[:, None] if images.ndim == 4 else images
            sequences = self._seeing(input_ids, images, sequences)
        x, _ = self.language.stack(self.embed(input_ids, sequences), sequences)
        return self.logits(x)

    def decode(
        self,
        input_ids: Int[Array, "B T"],
        sequences: Sequences,
        caches: Any,
        last: Int[Array, "*rows"] | None = None,
    ) -> tuple[Float[Array, "B some V"], Any]:
        """Returns what the language model decodes; `sequences` bring the embeddings of pictures."""
        return self.language.decode(input_ids, sequences, caches, last)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the language model's cache layout."""
        return self.language.cache_spec(rows, length, dtype)

    @kn.nowrap
    def longest_sequence(self) -> int | None:
        """Returns the language model's: the tower's positions are those of patches."""
        return self.language.longest_sequence()

    @kn.nowrap
    def trained_length(self) -> int | None:
        """Returns the language model's."""
        return self.language.trained_length()

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer in the language model's stack."""
        return {**params, "language": self.language.unstacked(params["language"])}

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float | None:
        """Returns forward matmul FLOPs of the row's tokens, and of its pictures through tower and projector."""
        tokens = self.language.flops_per_row(shapes)
        if tokens is None or "images" not in shapes:
            return tokens
        count, *shape = shapes["images"]
        patches = self.picture_tokens(self.config).num_tokens
        one = self.tower.flops_per_image(tuple(shape)) + self.projector.flops_per_token(patches) * patches
        return float(tokens + count * one)
