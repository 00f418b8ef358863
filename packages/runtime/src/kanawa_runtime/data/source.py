"""Rows of text: a corpus and a tokenizer, packed."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from kanawa.config import Size
from kanawa.contracts.data import DataSource

from kanawa_runtime.data.corpus import Corpus, Document, EmbeddedCorpus, Split
from kanawa_runtime.data.encoded import Example, fitted_tokenizer, shard_folder
from kanawa_runtime.data.encoding import TextEncoder, default_processes, encoded_shards, text_batches, text_examples
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.shards import ShardHead, read_head
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class TextSource(PackedSource):
    """Packed rows of a corpus: a document is predicted from its begin token to its end token."""

    class Config(PackedSource.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("tokenizer_file", "encode_processes")
        CONTENT = ("corpus", "tokenizer")

        corpus: Corpus.Config = EmbeddedCorpus.Config()
        #: Learned from the corpus unless `tokenizer_file` names a saved one.
        tokenizer: Tokenizer.Config = BytePairTokenizer.Config()
        #: Processes that encode; None takes the cores of this machine, at most eight. Small texts need none.
        encode_processes: Size | None = None

    #: Whether the reading that finds the digest encodes the text too: it is, unless no row may ever be asked for.
    encodes_early = True
    #: The shards that it wrote, until they are used.
    _early: list[ShardHead] | None = None

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus, not yet read."""
        corpus: Corpus = self.config.corpus.clone().build()
        return corpus

    @functools.cached_property
    def learned_from(self) -> tuple[Corpus, ...]:
        """The corpora that the tokenizer is learned from: this one, unless a mixture sets those of all its text."""
        return (self.corpus,)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded from its file or the cache, or learned now."""
        if self.config.tokenizer_file is not None:
            return load_tokenizer(self.config.tokenizer_file)
        return fitted_tokenizer(self.config.tokenizer, self.learned_from)

    @property
    def vocab_size(self) -> int:
        """The tokenizer's; known without reading the corpus."""
        if self.config.tokenizer_file is not None:
            return self.tokenizer.vocab_size
        untrained: Tokenizer = self.config.tokenizer.clone().build()
        return untrained.vocab_size

    @property
    def content_digest(self) -> str:
        """The corpus's digest."""
        self._read_first()
        return self.corpus.digest

    def _read_first(self) -> None:
        """Reads a corpus that isn't known yet; the text is encoded on the way, where the tokenizer is known."""
        if self.encodes_early and not self._learns_tokenizer and self.config.shuffle_within == "epoch":
            early: list[ShardHead] = []
            if self.corpus.scan_while(self.config.split, lambda documents: early.extend(self._encoded(documents))):
                self._early = early

    @functools.cached_property
    def _learns_tokenizer(self) -> bool:
        return self.config.tokenizer_file is None and self.config.tokenizer.clone().build().learns

    def read_examples(self, split: Split) -> Iterator[Example]:
        """Yields each document between its begin and end tokens."""
        return text_examples((document.data for document in self.corpus.documents(split)), self.tokenizer)

    def _shards(self, folder: Path) -> Iterator[ShardHead]:
        early, self._early = self._early, None
        if early and all(read_head(folder, head.key) for head in early):
            return iter(early)
        return self._encoded(self.corpus.documents(self.config.split), folder)

    def _encoded(self, documents: Iterator[Document], folder: Path | None = None) -> Iterator[ShardHead]:
        processes = self.config.encode_processes or default_processes()
        encoder = TextEncoder(self.tokenizer)
        return encoded_shards(text_batches(documents), encoder, folder or shard_folder(), processes)

    @property
    def _num_examples(self) -> int | None:
        return self.corpus.num_documents(self.config.split) if self.config.shuffle_within == "window" else None

    def account(self) -> Mapping[str, Any]:
        """Returns how many documents there are, and how many rows and files were left out as unreadable."""
        scan = self.corpus.scan
        return {"documents": scan.documents, **scan.unreadable(), "reasons": list(scan.problems)}

    def held_out(self) -> DataSource | None:
        """Returns the validation split, once through in order; None where the corpus holds nothing out."""
        return None if self.config.corpus.validation_one_in == 0 else self.once("validation")

    def once(self, split: Split | None = None) -> "TextSource":
        """Returns the rows of a split, or of all documents, once through in order."""
        rows: TextSource = self._once(split).build()
        if "learned_from" in vars(self):
            rows.learned_from = self.learned_from
        return rows

    def _once(self, split: Split | None) -> "TextSource.Config":
        cfg: TextSource.Config = super()._once(split)
        if split is None:
            cfg.corpus.set(validation_one_in=0)
        return cfg

    def documents(self, split: Split) -> Iterator[bytes]:
        """Yields the bytes of each document of a split."""
        self._read_first()
        return (document.data for document in self.corpus.documents(split))

    def target_bytes(self, target_ids: np.ndarray, loss_weights: np.ndarray) -> float:
        """Returns the bytes of text that weighted targets stand for; end tokens stand for none."""
        lengths = self.tokenizer.byte_lengths[np.asarray(target_ids)]
        return float(lengths[np.asarray(loss_weights) > 0].sum()) * self.encoded.bytes_a_token_byte
