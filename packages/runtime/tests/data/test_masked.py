"""Hidden tokens: which, how many, the same each time, and never in padding."""

from typing import ClassVar

import numpy as np
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource


def source(**fields):
    inner = RandomTokens.Config(vocab_size=50)
    return MaskedTokens.Config(source=inner, sequence_length=2000, **fields).build()


class TestMaskedTokens(DataSourceConformance):
    unsupported: ClassVar = {"next token": "hidden tokens are predicted where they stand"}

    def source(self):
        return MaskedTokens.Config(source=RandomTokens.Config(vocab_size=50), sequence_length=16).build()


def test_shares_are_those_of_bert():
    row = source().row(3)
    chosen = row["loss_weights"] > 0
    hidden = row["input_ids"] == 50
    assert 0.12 < chosen.mean() < 0.18
    assert not np.any(hidden & ~chosen)
    assert 0.72 < hidden.sum() / chosen.sum() < 0.88
    kept = row["input_ids"][chosen] == row["target_ids"][chosen]
    assert 0.04 < kept.mean() < 0.2
    np.testing.assert_array_equal(row["input_ids"][~chosen], row["target_ids"][~chosen])


def test_the_mask_is_one_more_id_or_the_one_given():
    assert source().vocab_size == 51
    given = source(mask_id=7)
    assert given.vocab_size == 50
    assert (given.row(0)["input_ids"] == 7).sum() > 100


def test_the_seed_and_the_share_are_in_the_digest():
    digests = {source().digest, source(seed=1).digest, source(share=0.3).digest, source(mask_id=3).digest}
    assert len(digests) == 4


def test_padding_is_never_chosen_and_the_held_out_part_is_the_sources(sources):
    inner = TextSource.Config(corpus=EmbeddedCorpus.Config(root=str(sources)))
    inner.tokenizer.set(vocab_size=300)
    masked = MaskedTokens.Config(source=inner, sequence_length=64).build()
    held_out = masked.held_out()
    assert held_out.config.source.split == "validation"
    row = held_out.row(held_out.num_rows - 1)
    assert not np.any(row["loss_weights"][row["segment_ids"] == 0])
