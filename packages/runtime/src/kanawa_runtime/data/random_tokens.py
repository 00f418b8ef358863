"""Rows of random tokens, for benchmarks and tests: no corpus, no cache, nothing to wait for."""

import numpy as np
from kanawa.config import Size

from kanawa_runtime.data.permutation import random_words
from kanawa_runtime.data.random_rows import RandomRows


class RandomTokens(RandomRows):
    """Uniform token ids; each row is one full segment, so batches carry neither positions nor segment ids."""

    class Config(RandomRows.Config):
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

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        cfg = self.config
        self.check_index(index)
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
