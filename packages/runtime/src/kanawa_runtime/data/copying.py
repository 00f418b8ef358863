"""Strings to copy: a task that a small model learns from rewards alone, within a minute."""

import functools
import hashlib
import json
from typing import Any

import numpy as np
from kanawa.config import Count, Size, to_json
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
        #: Rows apart from those to learn from, once through.
        held_out_rows: Count = 0
        is_held_out: bool = False

        def check(self) -> list[str]:
            """Returns what is wrong with the lengths."""
            needed = 2 * self.string_length
            if self.sequence_length >= needed:
                return []
            return [f"sequence_length is {self.sequence_length}, but a string, a sign and its copy take {needed}"]

    @property
    def num_rows(self) -> int | None:
        """None: there is no end, but for rows that are held out."""
        return int(self.config.held_out_rows) if self.config.is_held_out else None

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
        cfg, shape, string = self.config, self.config.sequence_length, self._string(index)
        tokens = np.concatenate([string, np.asarray([cfg.letters], np.int32), string])
        count = tokens.size - 1
        ids, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
        ids[:count], targets[:count], segments[:count] = tokens[:-1], tokens[1:], 1
        weights = np.zeros(shape, np.float32)
        weights[cfg.string_length : count] = 1.0
        positions = np.arange(shape, dtype=np.int32)
        row = {"input_ids": ids, "target_ids": targets, "positions": positions, "segment_ids": segments}
        return {**row, "loss_weights": weights}

    def record(self, index: int) -> dict[str, Any]:
        """Returns the string: {"string": [3, 0, 5]}."""
        return {"string": self._string(index).tolist()}

    def held_out(self) -> DataSource | None:
        """Returns rows of a stream of their own; None where the config wants none."""
        cfg = self.config
        return type(self)(cfg.clone().set(is_held_out=True).freeze()) if cfg.held_out_rows else None

    def _string(self, index: int) -> np.ndarray:
        cfg = self.config
        if cfg.is_held_out and index >= cfg.held_out_rows:
            message = f"row {index} of {cfg.held_out_rows} that are held out"
            raise IndexError(message)
        key = (cfg.seed, index, 1) if cfg.is_held_out else (cfg.seed, index)
        string: np.ndarray = (random_words(cfg.string_length, *key) % np.uint64(cfg.letters)).astype(np.int32)
        return string
