"""One seed moves everything random, unless a part is pinned."""

import numpy as np
import tiny_lm
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.train.evaluate import Evaluator


def rows(data, seed):
    source = tiny_lm.tiny().set(data=data, seed=seed).build().source
    return [source.row(index) for index in range(4)]


def alike(first, second):
    return all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)


def random_tokens(**fields):
    return RandomTokens.Config(sequence_length=8, vocab_size=16, **fields)


def test_the_run_s_seed_draws_the_rows():
    assert alike(rows(random_tokens(), 1), rows(random_tokens(), 1))
    assert not alike(rows(random_tokens(), 0), rows(random_tokens(), 1))
    assert alike(rows(random_tokens(), 0), [RandomTokens(random_tokens().freeze()).row(i) for i in range(4)])


def test_a_pinned_part_stays():
    assert alike(rows(random_tokens(seed=7), 0), rows(random_tokens(seed=7), 1))


def test_sources_inside_of_others_follow_too():
    def hidden(**fields):
        return MaskedTokens.Config(sequence_length=8, source=random_tokens(**fields))

    first, second = rows(hidden(), 0), rows(hidden(), 1)
    assert not alike(first, second)
    first, second = rows(hidden(seed=3), 0), rows(hidden(seed=3), 1)
    assert [row["target_ids"].tolist() for row in first] == [row["target_ids"].tolist() for row in second]
    assert [row["input_ids"].tolist() for row in first] != [row["input_ids"].tolist() for row in second]


def test_what_is_held_out_follows_as_well():
    class HoldingOut(RandomTokens):
        def held_out(self):
            return self

    seeds = []
    for seed in (0, 5):
        cfg = tiny_lm.tiny().set(data=HoldingOut.Config(sequence_length=8, vocab_size=16), seed=seed).freeze()
        seeds.append(Evaluator(cfg, None).source.config.seed)
    assert seeds == [0, 5]
