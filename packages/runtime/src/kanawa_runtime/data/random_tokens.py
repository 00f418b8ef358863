"""Rows of random tokens, for benchmarks and tests: no corpus, no cache, nothing to wait for."""

import functools
import hashlib
import json

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts.data import DataSource

from kanawa_runtime.data.permutation import random_words


class RandomTokens(DataSource):
    """Uniform token ids; each row is one full segment, so batches carry neither positions nor segment ids."""

    packed = False

    class Config(DataSource.Config):
        vocab_size: Size = 2048
        #: None repeats for ever (rows differ, however far).
        num_rows: Size | None = None

    config: Config

    @property
    def num_rows(self) -> int | None:
        """The configured count."""
        return self.config.num_rows

    @property
    def vocab_size(self) -> int:
        """The configured size."""
        return self.config.vocab_size

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) of the config."""
        return hashlib.sha256(json.dumps(to_json(self.config), sort_keys=True).encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        cfg = self.config
        if index < 0 or (cfg.num_rows is not None and index >= cfg.num_rows):
            message = f"row {index} doesn't exist: num_rows={cfg.num_rows}"
            raise IndexError(message)
        words = random_words(cfg.sequence_length + 1, cfg.seed or 0, index)
        # Of 64 random bits the remainder's bias is too small ever to be seen.
        tokens = (words % np.uint64(cfg.vocab_size)).astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "target_ids": tokens[1:],
            "positions": np.arange(cfg.sequence_length, dtype=np.int32),
            "segment_ids": np.ones(cfg.sequence_length, np.int32),
            "loss_weights": np.ones(cfg.sequence_length, np.float32),
        }
