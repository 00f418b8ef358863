"""Rows of text: a corpus, a tokenizer and a packing joined into the `DataSource` contract."""

import functools
import hashlib
import json
from collections.abc import Iterator

import numpy as np
from kanawa.config import Size, to_json
from kanawa.contracts.data import DataSource

from kanawa_runtime.data.corpus import Corpus, EmbeddedCorpus, Split
from kanawa_runtime.data.encoded import EncodedDocuments, encoded_documents, fitted_tokenizer
from kanawa_runtime.data.packing import BestFitPacking, Packing
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.data.windows import RowPlan


class TextSource(DataSource):
    """Packed rows of a corpus; each token of the split is predicted exactly once an epoch.

    A document is predicted from its begin token to its end token. A piece that continues a document
    takes the last predicted token as its first input, so cutting loses context but no target.
    Building the source reads nothing; the corpus is opened at the first row.
    """

    class Config(DataSource.Config):
        #: The data's digest identifies the tokenizer; its location may change.
        PLACEMENT = ("tokenizer_file",)

        corpus: Corpus.Config = EmbeddedCorpus.Config()
        tokenizer: Tokenizer.Config = BytePairTokenizer.Config()
        #: A tokenizer to use instead of learning one for the corpus: a saved one, or a Hugging Face model's folder.
        tokenizer_file: str | None = None
        packing: Packing.Config = BestFitPacking.Config()
        split: Split = "train"
        shuffle: bool = True
        #: None repeats for ever.
        epochs: Size | None = None
        #: Documents packed and shuffled together; part of the row order.
        window_documents: Size = 4096

        def set_tokenizer_file(self, file: str) -> None:
            """Sets the tokenizer to use instead of learning one."""
            self.set(tokenizer_file=file)

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus, not yet read."""
        corpus: Corpus = self.config.corpus.clone().build()
        return corpus

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded from its file or the cache, or learned now."""
        if self.config.tokenizer_file is not None:
            return load_tokenizer(self.config.tokenizer_file)
        return fitted_tokenizer(self.config.tokenizer, self.corpus)

    @property
    def vocab_size(self) -> int:
        """The tokenizer's; known without reading the corpus."""
        if self.config.tokenizer_file is not None:
            return self.tokenizer.vocab_size
        untrained: Tokenizer = self.config.tokenizer.clone().build()
        return untrained.vocab_size

    @functools.cached_property
    def _encoded(self) -> EncodedDocuments:
        return encoded_documents(self.corpus, self.config.split, self.tokenizer)

    @functools.cached_property
    def _packing(self) -> Packing:
        packing: Packing = self.config.packing.clone().build()
        return packing

    @functools.cached_property
    def _plan(self) -> RowPlan:
        cfg = self.config
        return RowPlan(
            self._encoded.num_predictions,
            cfg.sequence_length,
            self._packing,
            window_documents=cfg.window_documents,
            seed=cfg.seed,
            shuffle=cfg.shuffle,
            epochs=cfg.epochs,
        )

    @property
    def num_rows(self) -> int | None:
        """Rows in all epochs; None when they repeat for ever."""
        return None if self.config.epochs is None else self._plan.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the text, the tokenizer and every setting of the row order."""
        settings = to_json(self.config)
        # Where text and tokenizer lie doesn't matter; their content enters by digest.
        for field in ("corpus", "tokenizer", "tokenizer_file"):
            settings.pop(field, None)
        parts = [self.corpus.digest, self.tokenizer.digest, settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; see `DataSource.row`."""
        length = self.config.sequence_length
        row = empty_row(length, self.tokenizer.pad_id)
        ids, offsets = self._encoded.ids, self._encoded.offsets
        separate = self._packing.config.separate_documents
        filled = 0
        for number, piece in enumerate(self._plan.row(index), 1):
            here = slice(filled, filled + piece.length)
            begin = int(offsets[piece.document]) + piece.start
            # A piece of n predictions reads n + 1 ids, of which neighbouring pieces share one.
            row["input_ids"][here] = ids[begin : begin + piece.length]
            row["target_ids"][here] = ids[begin + 1 : begin + piece.length + 1]
            row["positions"][here] = np.arange(piece.length) if separate else np.arange(here.start, here.stop)
            row["segment_ids"][here] = number if separate else 1
            row["loss_weights"][here] = 1.0
            filled = here.stop
        return row

    def held_out(self) -> "TextSource | None":
        """Returns the validation split, once through in order; None where the corpus holds nothing out."""
        if self.config.corpus.validation_one_in == 0:
            return None
        return self.once("validation")

    def once(self, split: Split | None = None) -> "TextSource":
        """Returns the rows of a split, or of all documents, once through in order."""
        cfg = self.config.clone().set(split=split or "train", epochs=1, shuffle=False)
        if split is None:
            cfg.corpus.set(validation_one_in=0)
        rows: TextSource = cfg.build()
        return rows

    def documents(self, split: Split) -> Iterator[bytes]:
        """Yields the bytes of each document of a split."""
        return (document.data for document in self.corpus.documents(split))

    def target_bytes(self, target_ids: np.ndarray, loss_weights: np.ndarray) -> float:
        """Returns the bytes of text that weighted targets stand for; end tokens stand for none."""
        lengths = self.tokenizer.byte_lengths[np.asarray(target_ids)]
        return float(lengths[np.asarray(loss_weights) > 0].sum()) * self._bytes_a_token_byte

    @functools.cached_property
    def _bytes_a_token_byte(self) -> float:
        """Bytes of the split's text for each byte its tokens stand for: 1 unless the tokenizer changes the text.

        Some put a space in front or normalise. Over a whole split the sum is then exact, as is nats per byte.
        """
        spelled = int(self.tokenizer.byte_lengths[self._encoded.ids].sum(dtype=np.int64))
        return self._encoded.num_bytes / spelled if spelled else 1.0


def empty_row(length: int, pad_id: int = 0) -> dict[str, np.ndarray]:
    """Returns a row of padding: segment 0 and weight 0 throughout."""
    return {
        "input_ids": np.full(length, pad_id, np.int32),
        "target_ids": np.full(length, pad_id, np.int32),
        "positions": np.zeros(length, np.int32),
        "segment_ids": np.zeros(length, np.int32),
        "loss_weights": np.zeros(length, np.float32),
    }
