"""A language model that reads pictures: a tower, a projector, and any decoder (LLaVA, Liu et al., arXiv:2304.08485)."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int, Num
from kanawa.contracts import Batch, CausalLM, ImageChatBatch, PictureTokens, ReadsPictures, SequenceMixer, Sequences
from kanawa.errors import ModuleError

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.projectors import Grid, PictureProjector, Projector, projector_of
from kanawa_layers.models.vision import PictureTower, image_shape, tower_of
from kanawa_layers.positions.of_pictures import grid_coordinates, rest_of_picture


class VisionLanguageModel(CausalLM, ReadsPictures):
    """A decoder in whose rows each `image_token_id` stands for one token of the row's pictures, in order.

    What the projector makes of the tower's patches, without its class token and registers, takes the place of those
    tokens' embeddings. The sizes `vocab_size` and `input_dim` are those of `language`. `mark_id` and `written`: see
    `PictureTokens`. With `both_ways`, tokens see the rest of their own picture too. With `grid_coordinates`, tokens
    have three positions (M-RoPE, Wang et al. 2024, arXiv:2409.12191): a picture's are those of its row and column.
    """

    batch = ImageChatBatch

    tower: PictureTower
    projector: Projector
    language: DecoderLM

    class Config(CausalLM.Config, ReadsPictures.Config):
        image_token_id: kn.Count = kn.REQUIRED
        mark_id: kn.Count | None = None
        written: tuple[kn.Count | str, ...] = ()
        both_ways: bool = False
        grid_coordinates: bool = False
        tower_dim: kn.Size = kn.REQUIRED
        tower: PictureTower.Config = kn.REQUIRED
        projector: Projector.Config = PictureProjector.Config()
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
            ids = {"image_token_id": self.image_token_id, "mark_id": self.mark_id or 0}
            ids |= {"written": max((part for part in self.written if isinstance(part, int)), default=0)}
            last = self.vocab_size - 1
            problems += [f"{name} is {token}, and ids end at {last}" for name, token in ids.items() if token > last]
            if self.written and self.image_token_id not in self.written:
                problems.append(f"written lacks image_token_id ({self.image_token_id}), so that pictures have no place")
            if not image_shape(self.tower):
                problems.append("tower.positions aren't learned, so that pictures have no size; use LearnedPositions")
            else:
                problems += projector_of(self.projector).grid_problems(self.projector, picture_grid(self.tower))
            if self.both_ways:
                mixers = {path: node for path, node in self.language.walk() if isinstance(node, SequenceMixer.Config)}
                problems += [
                    f"language.{path} is {type(node).__qualname__}, which can't show a token the rest of its picture "
                    f"(both_ways); use GroupedQueryAttention"
                    for path, node in mixers.items()
                    if not isinstance(node, (GroupedQueryAttention.Config, LatentAttention.Config))
                ]
            return problems

    @classmethod
    def row_shapes(cls, cfg: "VisionLanguageModel.Config") -> Mapping[str, tuple[int, ...]]:
        """Returns nothing: rows have any number of pictures."""
        del cfg
        return {}

    @classmethod
    def picture_tokens(cls, cfg: "VisionLanguageModel.Config") -> PictureTokens:
        """Returns the tokens of a picture of the tower's size."""
        count = projector_of(cfg.projector).num_tokens(cfg.projector, picture_grid(cfg.tower))
        shape = tuple(image_shape(cfg.tower)["images"])
        return PictureTokens(cfg.image_token_id, count, shape, cfg.mark_id, tuple(cfg.written), cfg.both_ways)

    @classmethod
    def picture_coordinates(cls, cfg: "VisionLanguageModel.Config", input_ids: np.ndarray) -> np.ndarray | None:
        """Returns the three positions of each token; None without `grid_coordinates`."""
        if not cfg.grid_coordinates:
            return None
        grid = projector_of(cfg.projector).token_grid(cfg.projector, picture_grid(cfg.tower))
        is_picture = np.asarray(input_ids)[None] == cfg.image_token_id
        coordinates = grid_coordinates(is_picture, np.arange(len(input_ids), dtype=np.int32)[None], grid, np)
        return np.asarray(coordinates[0], np.int32)

    def setup(self) -> None:
        """Declares tower, projector and language model."""
        cfg = self.config
        self.add_child("tower", cfg.tower, input_dim=cfg.tower_dim)
        self.add_child("projector", cfg.projector, input_dim=cfg.tower_dim, output_dim=cfg.input_dim)
        self.add_child("language", cfg.language)

    def encode_pictures(self, images: Num[Array, "N H W C"]) -> Float[Array, "N P F"]:
        """Returns the embeddings of each picture's tokens, for pixels 0 to 255 or normalised images."""
        patches = self.tower(images)[:, self.config.tower.num_prefix :]
        return self.projector(patches, picture_grid(self.config.tower, images.shape[1:3]))

    def _seeing(self, input_ids: Int[Array, "B T"], images: Num[Array, "B N H W C"], sequences: Sequences) -> Sequences:
        """Returns `sequences` with the embeddings of the picture tokens, and what they see."""
        cfg, (rows, count) = self.config, images.shape[:2]
        patches = self.encode_pictures(images.reshape(rows * count, *images.shape[2:]))
        patches = patches.reshape(rows, -1, patches.shape[-1])
        is_patch = input_ids == cfg.image_token_id
        place = jnp.clip(jnp.cumsum(is_patch, axis=1) - 1, 0, patches.shape[1] - 1)
        embeddings = jnp.take_along_axis(patches, place[..., None], axis=1)
        sequences = sequences._replace(embeddings=embeddings, is_embedded=is_patch)
        if cfg.grid_coordinates:
            grid = projector_of(cfg.projector).token_grid(cfg.projector, picture_grid(cfg.tower, images.shape[2:4]))
            positions = jnp.broadcast_to(sequences.token_positions(input_ids.shape[1]), input_ids.shape)
            sequences = sequences._replace(coordinates=grid_coordinates(is_patch, positions, grid, jnp))
        return self._looking_ahead(sequences)

    def _looking_ahead(self, sequences: Sequences) -> Sequences:
        """Returns `sequences` whose picture tokens see the rest of their picture, with `both_ways`."""
        if not self.config.both_ways or sequences.is_embedded is None:
            return sequences
        seen = sequences.is_embedded
        positions = jnp.broadcast_to(sequences.token_positions(seen.shape[1]), seen.shape)
        return sequences._replace(lookahead=rest_of_picture(seen, positions))

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
        """Returns what the language model decodes; `sequences` bring the embeddings of pictures and coordinates.

        With `both_ways` a picture's tokens come in one call. Raises ModuleError where coordinates are missing.
        """
        if self.config.grid_coordinates and sequences.is_embedded is not None and sequences.coordinates is None:
            message = f"{self.path}: tokens of pictures need sequences.coordinates; see picture_coordinates"
            raise ModuleError(message)
        return self.language.decode(input_ids, self._looking_ahead(sequences), caches, last)

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
        grid = picture_grid(self.config.tower, (shape[0], shape[1]))
        return float(
            tokens + count * (self.tower.flops_per_image(tuple(shape)) + self.projector.flops_per_picture(grid))
        )


def picture_grid(tower: PictureTower.Config, size: tuple[int, ...] | None = None) -> Grid:
    """Returns rows and columns of patches of pictures of `size` (height, width), by default the tower's own."""
    height, width = image_shape(tower)["images"][:2] if size is None else size
    side = tower_of(tower).patch_size(tower)
    return height // side, width // side
