"""Rows of random latents with states of texts, for plans, benchmarks and tests: nothing to decode or wait for."""

import math
from collections.abc import Mapping

import numpy as np
from kanawa.config import Size
from kanawa.contracts import TextLatentsBatch
from kanawa.contracts.data import RowField

from kanawa_runtime.data.permutation import random_words
from kanawa_runtime.data.random_rows import RandomRows


def unit_noise(shape: tuple[int, ...], *key: int) -> np.ndarray:
    """Returns uniform fp32 numbers of mean 0 and variance 1, a function of the key."""
    uniform = (random_words(math.prod(shape), *key) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return ((uniform - np.float32(0.5)) * np.float32(12**0.5)).reshape(shape)


class RandomLatents(RandomRows):
    """Latents of pictures or videos, and what encoders made of texts, both drawn from uniform numbers of variance 1."""

    batch = TextLatentsBatch
    unit = "videos"

    class Config(RandomRows.Config):
        #: Of a row's latents: rows, columns and channels, with frames in front for videos.
        shape: tuple[Size, ...] = (64, 64, 16)
        text_length: Size = 77
        text_dim: Size = 64
        #: Width of one vector a text; None of models that read none.
        pooled_dim: Size | None = None
        #: None repeats for ever (rows differ, however far).
        num_rows: Size | None = None

    config: Config

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The arrays of `TextLatentsBatch`."""
        cfg = self.config
        pooled = None if cfg.pooled_dim is None else RowField((cfg.pooled_dim,), "float32", (None,))
        return {
            "images": RowField(cfg.shape, "float32", (None,) * len(cfg.shape)),
            "states": RowField((cfg.text_length, cfg.text_dim), "float32", (None, None)),
            "pooled": pooled,
            "loss_weights": RowField((), "float32", ()),
        }

    @property
    def num_rows(self) -> int | None:
        """The configured count."""
        return self.config.num_rows

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        cfg = self.config
        self.check_index(index)
        key = (cfg.seed or 0, index)
        row = {
            "images": unit_noise(cfg.shape, *key, 0),
            "states": unit_noise((cfg.text_length, cfg.text_dim), *key, 1),
        }
        if cfg.pooled_dim is not None:
            row["pooled"] = unit_noise((cfg.pooled_dim,), *key, 2)
        return {**row, "loss_weights": np.ones((), np.float32)}

    def held_out(self) -> "RandomLatents":
        """Returns eight rows of another seed."""
        cfg = self.config.clone().set(seed=(self.config.seed or 0) + 1, num_rows=8)
        held_out: RandomLatents = cfg.build()
        return held_out
