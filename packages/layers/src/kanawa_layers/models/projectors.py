"""From the patches of a tower to the embeddings of a picture's tokens, a slot of vision-language models."""

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Norm
from kanawa.errors import ModuleError

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.basic.norms import LayerNorm, RMSNorm
from kanawa_layers.feedforward.activations import gelu_exact

#: Rows and columns of patches.
Grid = tuple[int, int]


class Projector(kn.Module):
    """Patches [pictures, patches, tower] to embeddings [pictures, tokens, embed]."""

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT

    @classmethod
    @abc.abstractmethod
    def token_grid(cls, cfg: Any, grid: Grid) -> Grid:
        """Returns rows and columns of tokens of a picture of these patches."""

    @classmethod
    def num_tokens(cls, cfg: Any, grid: Grid) -> int:
        """Returns how many tokens a picture of these patches has."""
        return math.prod(cls.token_grid(cfg, grid))

    @classmethod
    def grid_problems(cls, cfg: Any, grid: Grid) -> list[str]:
        """Returns why it can't read pictures of these patches."""
        del cfg, grid
        return []

    @abc.abstractmethod
    def forward(self, x: Float[Array, "N P E"], grid: Grid) -> Float[Array, "N Q D"]:
        """Returns the embeddings of patches, rows of them one after another."""

    @kn.nowrap
    def flops_per_picture(self, grid: Grid) -> float:
        """Returns forward matmul FLOPs of a picture, with each part applied to each token."""
        tokens = self.num_tokens(self.config, grid)
        return float(self.flops_per_token(tokens) * tokens)


def projector_of(cfg: Any) -> type[Projector]:
    """Returns the class of a projector's config."""
    kind: type[Projector] = cfg._target
    return kind


class PictureProjector(Projector):
    """down(activation(up(x))): a tower's patches as embeddings of the language model (LLaVA 1.5, arXiv:2310.03744)."""

    up: Linear
    down: Linear

    class Config(Projector.Config):
        activation: Callable[..., Array] = jax.nn.gelu
        up: Linear.Config = Linear.Config(bias=True)
        down: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(children={"up": "linear_1", "down": "linear_2"})

    @classmethod
    def token_grid(cls, cfg: Any, grid: Grid) -> Grid:
        """Returns that of the patches."""
        del cfg
        return grid

    def setup(self) -> None:
        """Declares both projections."""
        cfg = self.config
        add_linear(self, "up", cfg.input_dim, cfg.output_dim, ("embed", "mlp"))
        add_linear(self, "down", cfg.output_dim, cfg.output_dim, ("mlp", "embed"))

    def forward(self, x: Float[Array, "N P E"], grid: Grid) -> Float[Array, "N P D"]:
        """Returns the projected patches."""
        del grid
        return self.down(self.config.activation(self.up(x)))


class WindowedProjector(Projector, abstract=True):
    """Makes one token of `window` x `window` neighbouring patches."""

    class Config(Projector.Config):
        window: kn.Size = 2

    @classmethod
    def token_grid(cls, cfg: Any, grid: Grid) -> Grid:
        """Returns that of the windows."""
        return grid[0] // cfg.window, grid[1] // cfg.window

    @classmethod
    def grid_problems(cls, cfg: Any, grid: Grid) -> list[str]:
        """Returns that windows don't tile the patches."""
        return _untiled(cfg.window, grid)


class AveragedProjector(WindowedProjector):
    """Means of `window` x `window` neighbouring patches, a norm and one projection (Gemma 3, arXiv:2503.19786)."""

    norm: Norm
    projection: Linear

    class Config(WindowedProjector.Config):
        window: kn.Size = 4
        norm: Norm.Config = RMSNorm.Config(zero_centered=True)
        projection: Linear.Config = Linear.Config(
            # Theirs has inputs first, as ours.
            foreign=kn.foreign.Names(children={"adapter": ""}, tensors={"weight": "mm_input_projection_weight"})
        )
        foreign: kn.foreign.Names = kn.foreign.Names(children={"norm": "mm_soft_emb_norm", "projection": ""})

    def setup(self) -> None:
        """Declares the norm, of the tower's width, and the projection."""
        cfg = self.config
        self.add_child("norm", cfg.norm, input_dim=cfg.input_dim)
        add_linear(self, "projection", cfg.input_dim, cfg.output_dim, (None, "embed"))

    def forward(self, x: Float[Array, "N P E"], grid: Grid) -> Float[Array, "N Q D"]:
        """Returns the projected means."""
        pictures, _, width = x.shape
        side, (rows, columns) = self.config.window, grid
        windows = x.reshape(pictures, rows // side, side, columns // side, side, width)
        return self.projection(self.norm(windows.mean(axis=(2, 4)).reshape(pictures, -1, width)))


class PatchMerger(kn.Module):
    """down(gelu(up(x))) of `window` x `window` patches at once; `norm_window`: the norm is of all of them."""

    norm: Norm
    up: Linear
    down: Linear

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        output_dim: kn.Size = kn.FROM_PARENT
        window: kn.Size = kn.FROM_PARENT
        norm_window: bool = False
        norm: Norm.Config = LayerNorm.Config(eps=1e-6)
        activation: Callable[..., Array] = gelu_exact
        up: Linear.Config = Linear.Config(bias=True)
        down: Linear.Config = Linear.Config(bias=True)
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
        )

    def setup(self) -> None:
        """Declares the norm and both projections."""
        cfg = self.config
        width = cfg.input_dim * cfg.window**2
        self.add_child("norm", cfg.norm, input_dim=width if cfg.norm_window else cfg.input_dim)
        add_linear(self, "up", width, width, ("embed", "mlp"))
        add_linear(self, "down", width, cfg.output_dim, ("mlp", "embed"))

    def forward(self, x: Float[Array, "N P E"], grid: Grid) -> Float[Array, "N Q D"]:
        """Returns a token for each window."""
        cfg, (rows, columns), side = self.config, grid, self.config.window
        x = x if cfg.norm_window else self.norm(x)
        windows = x.reshape(x.shape[0], rows // side, side, columns // side, side, x.shape[-1])
        x = windows.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape[0], -1, side**2 * x.shape[-1])
        return self.down(cfg.activation(self.up(self.norm(x) if cfg.norm_window else x)))


class DeepStackProjector(WindowedProjector):
    """Merges a tower's last stream, and the streams behind it, each by a merger of `early` (Qwen3-VL).

    The result has the embeddings, and behind them, along channels, what the first layers add (`DeepStack`).
    """

    merger: PatchMerger
    early: tuple[PatchMerger, ...]

    class Config(WindowedProjector.Config):
        merger: PatchMerger.Config = PatchMerger.Config()
        early: tuple[PatchMerger.Config, ...] = ()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"merger": "merger", "early": "deepstack_merger_list.{}"})

    def setup(self) -> None:
        """Declares the mergers."""
        cfg = self.config
        sizes = {"input_dim": cfg.input_dim, "output_dim": cfg.output_dim, "window": cfg.window}
        self.add_child("merger", cfg.merger, **sizes)
        for index, merger in enumerate(cfg.early):
            self.add_child(f"early[{index}]", merger, **sizes)

    def forward(self, x: Float[Array, "N P F"], grid: Grid) -> Float[Array, "N Q W"]:
        """Returns the merged streams; raises ModuleError where there aren't as many as mergers."""
        mergers, width = (self.merger, *self.early), self.config.input_dim
        if x.shape[-1] != width * len(mergers):
            message = (
                f"{self.path}: the tower gives {x.shape[-1]} channels, and {len(mergers)} mergers read {width} each; "
                f"set as many tower.stack.taps as projector.early"
            )
            raise ModuleError(message)
        streams = jnp.split(x, len(mergers), axis=-1)
        return jnp.concatenate([merge(y, grid) for merge, y in zip(mergers, streams, strict=True)], axis=-1)


def _untiled(window: int, grid: Grid) -> list[str]:
    if not any(side % window for side in grid):
        return []
    return [f"projector.window ({window}) doesn't divide the {grid[0]} x {grid[1]} patches of a picture"]
