"""A corpus of a column of CSV files, and a source that mixes it with another text."""

import csv
import hashlib
import io

import kanawa as kn
from kanawa.contracts import DataSource
from kanawa_runtime.data.corpus import Document
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import FileCorpus, read_text
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer


class CsvColumn(FileCorpus):
    """A document a row, of one column."""

    class Config(FileCorpus.Config):
        column: str = "text"

    def read(self):
        """Yields documents named `path:row`."""
        for name, path in self.paths():
            rows = csv.DictReader(io.StringIO(read_text(path).decode()))
            if self.config.column not in (rows.fieldnames or ()):
                message = f"{path} has no column {self.config.column!r}"
                raise CorpusError(message)
            for number, row in enumerate(rows, 1):
                if row[self.config.column].strip():
                    yield Document(f"{name}:{number}", row[self.config.column].encode())


class Mixture(DataSource):
    """One row in `one_in` is of `second`, the others of `first`: a pure function of the row's index."""

    class Config(DataSource.Config):
        first: TextSource.Config = TextSource.Config(tokenizer=ByteTokenizer.Config())
        second: TextSource.Config = TextSource.Config(corpus=CsvColumn.Config(), tokenizer=ByteTokenizer.Config())
        one_in: kn.Size = 4

    def __init__(self, cfg):
        super().__init__(cfg)
        sizes = {"sequence_length": cfg.sequence_length, "seed": cfg.seed}
        self.parts = [part.clone(**sizes).build() for part in (cfg.first, cfg.second)]

    def row(self, index):
        """Returns the row of the part whose turn it is."""
        one_in = self.config.one_in
        turns, rest = divmod(index, one_in)
        if rest == one_in - 1:
            return self.parts[1].row(turns)
        return self.parts[0].row(turns * (one_in - 1) + rest)

    num_rows = None

    @property
    def vocab_size(self):
        """That of both."""
        return max(part.vocab_size for part in self.parts)

    @property
    def tokenizer(self):
        """The first's, which is the second's."""
        return self.parts[0].tokenizer

    @property
    def digest(self):
        """Everything that the rows depend on."""
        text = " ".join([str(self.config.one_in), *(part.digest for part in self.parts)])
        return hashlib.sha256(text.encode()).hexdigest()

    def held_out(self):
        """Returns the held-out rows of the first."""
        return self.parts[0].held_out()
