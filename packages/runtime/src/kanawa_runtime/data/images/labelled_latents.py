"""Rows of random latents with random labels, for plans and benchmarks: nothing can be learned of them."""

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts import DataSource, ImageBatch, RowField

from kanawa_runtime.data.permutation import random_words
from kanawa_runtime.data.random_latents import unit_noise


class LabelledLatents(DataSource):
    """Uniform numbers of mean 0 and variance 1, [height, width, channels], without end."""

    batch = ImageBatch
    unit: ClassVar[str] = "images"
    packed = False

    class Config(DataSource.Config):
        height: Size = 32
        width: Size = 32
        channels: Size = 4
        num_classes: Size = 1000

    config: Config

    @property
    def num_rows(self) -> None:
        """None: without end."""
        return

    @property
    def vocab_size(self) -> int:
        """0: there are no tokens."""
        return 0

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The latents, their label and their weight."""
        cfg = self.config
        images = RowField((cfg.height, cfg.width, cfg.channels), "float32", (None, None, None))
        scalars = {"target_ids": RowField((), "int32", ()), "loss_weights": RowField((), "float32", ())}
        return {"images": images, **scalars}

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) of the config."""
        return hashlib.sha256(json.dumps(to_json(self.config), sort_keys=True).encode()).hexdigest()

    def row(self, index: int) -> dict[str, Any]:
        """Returns row `index`; see `DataSource.row`."""
        cfg = self.config
        if index < 0:
            message = f"row {index} doesn't exist: rows count from 0"
            raise IndexError(message)
        label = random_words(1, cfg.seed or 0, index, 1)[0] % np.uint64(cfg.num_classes)
        return {
            "images": unit_noise((cfg.height, cfg.width, cfg.channels), cfg.seed or 0, index, 0),
            "target_ids": np.array(label, np.int32),
            "loss_weights": np.array(1.0, np.float32),
        }
