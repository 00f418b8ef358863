"""What a source of training rows promises: row r is a pure function of (config, seed, r)."""

import abc
from collections.abc import Iterable
from typing import Literal, Self

import numpy as np

from kanawa.config import Configurable, Seed, Size
from kanawa.contracts.tokenizer import Tokenizer

Split = Literal["train", "validation"]


class DataSource(Configurable):
    """A global sequence of rows, addressed by index, the same for any number of hosts and any restart.

    The data state of a run is therefore one number: how many rows were consumed. Hosts take slices of the index.
    Building a source opens nothing: a plan describes its batches on a machine that doesn't have the data.
    """

    class Config(Configurable.Config):
        sequence_length: Size = 512
        #: None is the run's own seed; a number pins the rows, whatever the run's seed is.
        seed: Seed | None = None

        def seeded(self, seed: int) -> Self:
            """Returns the config with this seed in every source whose own isn't pinned, nested ones included."""
            cfg = self.clone()
            for _, node in cfg.walk():
                if isinstance(node, DataSource.Config) and node.seed is None:
                    node.set(seed=seed)
            return cfg

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the saved tokenizer that text is read by; rows that aren't text ignore it."""
            del file

    def __init__(self, cfg: Config) -> None:
        """Takes the config; a source without a seed, which belongs to no run, has seed 0."""
        super().__init__(cfg if cfg.seed is not None else cfg.clone().set(seed=0).freeze())

    @property
    def packed(self) -> bool:
        """Whether rows hold packed segments; if not, a batch has neither positions nor segment ids."""
        return True

    @abc.abstractmethod
    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`: int32 `input_ids, target_ids, positions, segment_ids`, float32 `loss_weights`.

        Each array has shape [sequence_length]. Raises IndexError at or past `num_rows`.
        """

    @property
    @abc.abstractmethod
    def num_rows(self) -> int | None:
        """Rows in the sequence; None when it repeats for ever."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """One more than the largest token id."""

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """Hex digest of everything the rows depend on; pinned in the run, and checked on resume."""

    def target_bytes(self, target_ids: np.ndarray, loss_weights: np.ndarray) -> float | None:
        """Returns how many bytes of text the weighted targets cover; None where that means nothing."""
        del target_ids, loss_weights
        return None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the rows' text; None where they never were text."""
        return None

    def held_out(self) -> "DataSource | None":
        """Returns the held-out rows, one pass in a fixed order; None where there are none."""
        return None

    def once(self, split: Split | None = None) -> "DataSource | None":
        """Returns the rows of a split, or of all the data, one pass in a fixed order; None for a source without end."""
        del split
        return None

    def documents(self, split: Split) -> Iterable[bytes] | None:
        """Returns the text behind a split's rows, document by document; None where the rows aren't made of text."""
        del split
        return None
