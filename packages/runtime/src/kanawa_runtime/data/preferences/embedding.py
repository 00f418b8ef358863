"""Packed rows of pairs of texts that belong together, such as a question and what answers it."""

import functools
from collections.abc import Mapping
from typing import Any

from kanawa.errors import UsageError, did_you_mean

from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.preferences.reference import Segment
from kanawa_runtime.data.preferences.source import PairedSource
from kanawa_runtime.data.records.source import RecordError
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class EmbeddingPairs(PairedSource):
    """Packed rows of pairs from records with two texts, each a segment, read whole as the tokenizer says.

    The other pairs of a batch are what a text is told apart from.
    """

    class Config(PairedSource.Config):
        #: The columns of a record.
        query: str = "query"
        positive: str = "positive"

    sum_columns = ("", "")

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        if self.config.tokenizer_file is None:
            message = (
                "pairs of texts are read by the tokenizer of the model that learns them, and data.tokenizer_file names "
                "none: train a folder that has a tokenizer.json, kanawa train FOLDER --modify embed --data pairs.jsonl"
            )
            raise UsageError(message)
        return load_tokenizer(self.config.tokenizer_file)

    @property
    def other_content(self) -> tuple[str, ...]:
        """Nothing: these rows have no template."""
        return ()

    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns both texts; raises RecordError."""
        sides = []
        for name in (self.config.query, self.config.positive):
            if name not in fields:
                found = ", ".join(fields) or "none"
                raise RecordError(at=name, why=f"there is no such column{did_you_mean(name, fields)}; found {found}")
            if not isinstance(fields[name], str) or not fields[name].strip():
                raise RecordError(at=name, why=f"found {fields[name]!r:.40}, expected a text")
            sides.append(Example(self.tokenizer.encode_whole(fields[name])[0]))
        return self.joined(sides[0], sides[1])

    def pair(self, document: int) -> tuple[Segment, Segment, float]:
        """Returns the query and what belongs to it."""
        first, second, _ = self._halves(document)
        return first, second, 1.0
