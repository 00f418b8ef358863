"""Span corruption loses no token: spans put back where their sentinels stand are the row that was corrupted."""

import numpy as np
import pytest
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.span_corruption import SpanCorruption

TOKENS = RandomTokens.Config(vocab_size=50)


def corrupting(length=24, **fields):
    return SpanCorruption.Config(source=TOKENS, sequence_length=length, num_sentinels=9, seed=3, **fields).build()


class TestSpanCorruption(DataSourceConformance):
    def source(self):
        return corrupting()


def both_sides(row, sentinels):
    """Returns the tokens of a row from its two sides, without the ends, and whether each was taken out."""
    spans = {}
    for token in row["target_ids"][row["loss_weights"] > 0][:-1].tolist():
        if token in sentinels:
            number = token
            spans[number] = []
        else:
            spans[number].append(token)
    tokens, taken = [], []
    for token in row["input_ids"][row["segment_ids"] > 0][:-1].tolist():
        own = spans.pop(token) if token in sentinels else [token]
        tokens += own
        taken += [token in sentinels] * len(own)
    assert not spans, "a span has no sentinel in the input"
    return tokens, taken


@pytest.mark.parametrize(("length", "fields"), [(24, {}), (100, {}), (8, {}), (40, {"share": 0.5, "mean_span": 2.0})])
def test_both_sides_together_are_the_row_and_fill_their_lengths(length, fields):
    source = corrupting(length, **fields)
    whole = TOKENS.clone().set(sequence_length=source.source_length).build()
    assert sorted(source.sentinels.tolist()) == list(range(50, 59)) and source.sentinels[0] == 58
    for index in range(5):
        row = source.row(index)
        tokens, _ = both_sides(row, source.sentinels.tolist())
        np.testing.assert_array_equal(tokens, whole.row(index)["input_ids"])
        assert row["segment_ids"].all() or length - row["segment_ids"].sum() < 2, "the encoder's row is full"
        assert row["loss_weights"].all() and row["target_ids"][0] == source.sentinels[0]
        assert row["decoder_input_ids"].tolist() == [0, *row["target_ids"][:-1].tolist()]
        noise, spans = source.corruption(len(tokens))
        assert len(row["target_ids"]) == noise + spans + 1


def test_spans_are_drawn_evenly_and_by_the_seed_and_the_row():
    source = corrupting(length=40)
    taken = np.mean([both_sides(source.row(index), source.sentinels.tolist())[1] for index in range(300)], axis=0)
    share = source.corruption(source.source_length).noise / source.source_length
    # The first token always stays, and the last one never does: spans and what stays alternate.
    assert taken[0] == 0 and taken[-1] == 1 and abs(taken[3:-3].mean() - share) < 0.06 and taken[3:].min() > 0
    other = source.config.clone().set(seed=4).build()
    assert (source.row(0)["input_ids"] != other.row(0)["input_ids"]).any()
