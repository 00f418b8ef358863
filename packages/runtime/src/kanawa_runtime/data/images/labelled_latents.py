"""Rows of random latents with random labels, for plans and benchmarks: nothing can be learned of them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from kanawa.config import Size
from kanawa.contracts import ImageBatch, RowField

from kanawa_runtime.data.permutation import random_words
from kanawa_runtime.data.random_latents import unit_noise
from kanawa_runtime.data.random_rows import RandomRows


class LabelledLatents(RandomRows):
    """Uniform numbers of mean 0 and variance 1, [height, width, channels], without end."""

    batch = ImageBatch
    unit: ClassVar[str] = "images"

    class Config(RandomRows.Config):
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

    def row(self, index: int) -> dict[str, Any]:
        """Returns row `index`; see `DataSource.row`."""
        cfg = self.config
        self.check_index(index)
        label = random_words(1, cfg.seed or 0, index, 1)[0] % np.uint64(cfg.num_classes)
        return {
            "images": unit_noise((cfg.height, cfg.width, cfg.channels), cfg.seed or 0, index, 0),
            "target_ids": np.array(label, np.int32),
            "loss_weights": np.array(1.0, np.float32),
        }
