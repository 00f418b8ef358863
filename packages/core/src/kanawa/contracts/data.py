"""From text to the batches of one process: tokenizer, source and loader."""

import abc
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np

from kanawa.config import Config, Configurable, Seed, Size
from kanawa.contracts.batch import Batch

Split = Literal["train", "validation"]


class Tokenizer(Protocol):
    """What callers of a data source need of its tokenizer; anything with these members fits."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a text when a model draws them."""

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the ids of `text`, int32 [tokens]."""

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`."""

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer to one file; the trainer keeps it in the run, since a learned one can't be relearned."""


class RowField(NamedTuple):
    """One array of a row: its shape and dtype, and the logical axes of its dimensions; a batch has `batch` in front."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]


class Shown(NamedTuple):
    """What a person is to see of a row: words such as its label, and uint8 `image` [height, width, channels] if any."""

    text: str
    image: np.ndarray | None = None


class DataSource(Configurable):
    """A global sequence of rows: row r is a pure function of (config, seed, r), for any number of hosts and restarts.

    A batch of rows is a record, as `Model.batch` names it: token rows, or another NamedTuple with the arrays `fields`.

    The data state of a run is therefore one number: how many rows were consumed. Hosts take slices of the index.
    Building a source opens nothing: a plan describes its batches on a machine that doesn't have the data.
    """

    #: The record that a batch of rows is.
    batch: ClassVar[type] = Batch
    #: What the weights of rows count, for screens and reports, where a record has weights; else rows are counted.
    unit: ClassVar[str] = "tokens"

    class Config(Configurable.Config):
        #: Of rows of tokens.
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

        def in_batches(self, rows: int) -> Self:
            """Returns the config with places given as steps turned into rows, for batches of so many rows."""
            cfg = self.clone()
            for _, node in cfg.walk():
                if isinstance(node, DataSource.Config):
                    node.set_batch_rows(rows)
            return cfg

        def set_batch_rows(self, rows: int) -> None:
            """Turns places of this source that are given as steps into rows; most have none."""
            del rows

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the saved tokenizer that text is read by; rows that aren't text ignore it."""
            del file

        @classmethod
        def of_files(cls, address: str, experiment: Config) -> "DataSource.Config | None":
            """Returns the config that reads the files of `--data ADDRESS` for an experiment's model; None: reads none.

            Asked where the model learns from records of this source; text is read without. What the experiment's own
            data are set to, where they are of this source, stays.
            """
            del address, experiment
            return None

        @classmethod
        def unnamed(cls, model: Config) -> "DataSource.Config | None":
            """Returns the config of rows in a model's sizes whose files are still to be named; None: has no files.

            A plan describes batches of it; reading a row raises an error that says how data are named.
            """
            del model
            return None

    def __init__(self, cfg: Config) -> None:
        """Takes the config; a source without a seed, which belongs to no run, has seed 0."""
        super().__init__(cfg if cfg.seed is not None else cfg.clone().set(seed=0).freeze())

    @property
    def is_named(self) -> bool:
        """Whether there are data to read; if not, rows can be described alone (`Config.unnamed`)."""
        return True

    @property
    def packed(self) -> bool:
        """Whether rows hold packed segments; if not, a batch has neither positions nor segment ids."""
        return True

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the columns of the batch's `sources`; () where the rows have one source."""
        return ()

    @abc.abstractmethod
    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`: the arrays of `fields`; raises IndexError at or past `num_rows`."""

    def record(self, index: int) -> Mapping[str, Any]:
        """Returns the columns of the record that row `index` was made of; empty where rows come from no records.

        Of a row that holds several, it is that of the first weighted target. Rewards read columns by their names.
        """
        del index
        return {}

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """The arrays of a row by their names in `batch`; None for what its batches don't have.

        Rows of tokens unless overridden: int32 `input_ids, target_ids, positions, segment_ids`, float32 `loss_weights`,
        each of shape [sequence_length], and float32 `sources` [names] of a mixture. A record with `loss_weights` is
        padded to whole batches by rows of zeros; of others a rest that fills no batch is dropped.
        """
        ids, weights = (RowField((self.config.sequence_length,), dtype, ("length",)) for dtype in ("int32", "float32"))
        packed = ids if self.packed else None
        names = len(self.source_names)
        sources = RowField((names,), "float32", (None,)) if names else None
        return dict(zip(Batch._fields, (ids, ids, packed, packed, weights, sources), strict=True))

    @property
    @abc.abstractmethod
    def num_rows(self) -> int | None:
        """Rows in the sequence; None when it repeats for ever."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id; 0 of rows without tokens."""
        return 0

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes that ids in `target_ids` stand for, known without opening the data; () of none."""
        return ()

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown | None:
        """Returns what a person is to see of a row; None for rows of tokens, and where its arrays say it all."""
        del row
        return None

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """Hex digest of everything the rows depend on; pinned in the run, and checked on resume."""

    def account(self) -> Mapping[str, Any]:
        """Reads the data; returns, as JSON, what became of it, such as how many records were skipped, for events.

        The trainer asks before it compiles, so that data which can't be learned from is found at once. {} where nothing
        is counted: such data are read when their rows are.
        """
        return {}

    def check_start(self, folder: Path | None) -> None:
        """Raises where rows fit only a run that begins with other parameters than the folder's; None are new ones.

        The trainer asks before a run's first step, not where one is resumed. Most rows fit any model.
        """
        del folder

    def saved(self, row: int) -> dict[str, Any]:
        """Returns, as JSON, what the rows before `row` depend on beside (config, seed): what may change at a restart.

        Each checkpoint holds it. {} of sources whose rows follow from their config.
        """
        del row
        return {}

    def resume(self, row: int, saved: Mapping[str, Any]) -> None:
        """Takes what `saved(row)` returned in an earlier attempt; called before any row is read."""

    def changes(self, first: int, end: int) -> Sequence[Mapping[str, Any]]:
        """Returns what changes in the sequence at rows `first` to `end - 1`, for events: each has a `row`."""
        del first, end
        return ()

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
        return self if split is None and self.num_rows is not None else None

    def documents(self, split: Split) -> Iterable[bytes] | None:
        """Returns the text behind a split's rows, document by document; None where the rows aren't made of text."""
        del split
        return None


class Loader(Configurable):
    """The trainer's and the evaluation's `loader` slot; a component of kind "loaders".

    Step s of an iteration holds, of each global batch, the rows `start_row + s * global_batch + p` for p in
    `local_rows`. Nothing else is state: a resumed run builds a new loader at the number of rows consumed, so the order
    may depend on neither threads nor time. How far it reads ahead is a placement choice.
    """

    def __init__(
        self,
        cfg: Any,
        *,
        source: DataSource,
        global_batch: int,
        local_rows: Sequence[int] | None = None,
        start_row: int = 0,
    ) -> None:
        """Takes this process's places in the global batch; None is all of them (one process)."""
        super().__init__(cfg)
        self.source = source
        self.global_batch = global_batch
        self.local_rows = tuple(range(global_batch) if local_rows is None else local_rows)
        self.start_row = start_row

    @abc.abstractmethod
    def __iter__(self) -> Generator[Any, None, None]:
        """Yields records of NumPy arrays [local rows, …], the source's `batch`, without end where it has none.

        A source that ends is padded to whole batches with rows of weight 0: every process must take as many steps.
        What the source's `fields` say None of is None. Closing the generator ends its threads.
        """
