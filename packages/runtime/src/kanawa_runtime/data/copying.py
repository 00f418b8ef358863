"""Strings to copy: a task that a small model learns from rewards alone, within a minute."""

import functools
import hashlib
import json

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts.data import DataSource

from kanawa_runtime.data.permutation import random_words


class Copying(DataSource):
    """A string of `letters` kinds of letter, a sign that it ends, the string again; only that is weighted.

    Ids below `letters` are letters, and `letters` is the sign. Rows repeat never, and each is one segment.
    """

    packed = False

    class Config(DataSource.Config):
        sequence_length: Size = 8
        letters: Size = 8
        string_length: Size = 3

        def check(self) -> list[str]:
            """Returns what is wrong with the lengths."""
            needed = 2 * self.string_length
            if self.sequence_length >= needed:
                return []
            return [f"sequence_length is {self.sequence_length}, but a string, a sign and its copy take {needed}"]

    @property
    def num_rows(self) -> int | None:
        """None: there is no end."""
        return None

    @property
    def vocab_size(self) -> int:
        """The letters and the sign."""
        return int(self.config.letters) + 1

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) of the config."""
        return hashlib.sha256(json.dumps(to_json(self.config), sort_keys=True).encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        cfg, shape = self.config, self.config.sequence_length
        string = (random_words(cfg.string_length, cfg.seed, index) % np.uint64(cfg.letters)).astype(np.int32)
        tokens = np.concatenate([string, np.asarray([cfg.letters], np.int32), string])
        count = tokens.size - 1
        ids, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
        ids[:count], targets[:count], segments[:count] = tokens[:-1], tokens[1:], 1
        weights = np.zeros(shape, np.float32)
        weights[cfg.string_length : count] = 1.0
        positions = np.arange(shape, dtype=np.int32)
        row = {"input_ids": ids, "target_ids": targets, "positions": positions, "segment_ids": segments}
        return {**row, "loss_weights": weights}
