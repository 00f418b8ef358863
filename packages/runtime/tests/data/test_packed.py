"""Packed examples with weights of their own: written where they belong, through the cache too."""

from collections.abc import Iterator

import numpy as np
from kanawa.config import Size
from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class Counting(PackedSource):
    """Examples of ids that count up, every third id weighed a half."""

    class Config(PackedSource.Config):
        examples: Size = 40

    @property
    def tokenizer(self) -> Tokenizer:
        built: Tokenizer = ByteTokenizer.Config().build()
        return built

    @property
    def content_digest(self) -> str:
        return "counting"

    def read_examples(self, split: str) -> Iterator[Example]:
        for number in range(self.config.examples):
            ids = np.arange(number % 9 + 2)
            yield Example(ids, np.where(ids % 3 == 0, 0.5, 1.0))


def test_weights_stand_beside_their_targets() -> None:
    source = Counting.Config(sequence_length=16, epochs=1, shuffle=True).build()
    seen = 0
    for index in range(source.num_rows or 0):
        row = source.row(index)
        real = row["segment_ids"] > 0
        expected = np.where(row["target_ids"] % 3 == 0, 0.5, 1.0)
        np.testing.assert_array_equal(row["loss_weights"][real], expected[real])
        assert not row["loss_weights"][~real].any()
        seen += int(real.sum())
    assert seen == sum(number % 9 + 1 for number in range(40))


def test_other_examples_are_another_entry_of_the_cache() -> None:
    few = Counting.Config(sequence_length=16, epochs=1, examples=3).build()
    many = Counting.Config(sequence_length=16, epochs=1, examples=30).build()
    assert len(few.encoded.num_predictions) == 3
    assert len(many.encoded.num_predictions) == 30
    assert few.digest != many.digest
