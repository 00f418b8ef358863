"""From ids to rows and back, answers to metrics, metrics to errors and intervals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.evaluate.encoding import RequestEncoder, Scored
from kanawa_runtime.evaluate.filters import check_step, filtered
from kanawa_runtime.evaluate.items import Item
from kanawa_runtime.evaluate.metrics import (
    Likelihood,
    aggregate,
    likelihood_values,
    paired_difference,
    standard_error,
    text_values,
)
from kanawa_runtime.evaluate.score_plan import score_batches
from kanawa_runtime.evaluate.task import FilterChain, TaskError, TaskMetric

requests = st.lists(
    st.tuples(st.lists(st.integers(1, 3), min_size=2, max_size=200), st.integers(1, 5)).map(
        lambda pair: Scored(tuple(pair[0]), min(pair[1], len(pair[0]) - 1))
    ),
    min_size=1,
    max_size=12,
)


def read_back(batches, count):
    """Returns each request's scored tokens with all that was read before them."""
    found = [[] for _ in range(count)]
    for batch in batches:
        for row, place in zip(*np.nonzero(batch.requests >= 0), strict=True):
            at = batch.places[row, place]
            own = batch.segment_ids[row] == batch.segment_ids[row, at]
            before = batch.input_ids[row][own & (np.arange(own.size) <= at)].tolist()
            assert batch.positions[row, at] == len(before) - 1
            found[batch.requests[row, place]].append((*before, batch.targets[row, place]))
    return found


@settings(max_examples=60, deadline=None)
@given(requests)
def test_each_token_is_scored_once_after_all_that_stands_before_it(asked):
    found = read_back(score_batches(asked, tokens=512, logits=2**14, vocab_size=4, multiple=2), len(asked))
    for mine, (ids, count) in zip(found, asked, strict=True):
        assert sorted(mine) == sorted(ids[:end] for end in range(len(ids) - count + 1, len(ids) + 1))


def test_beginnings_that_requests_share_are_read_once():
    context = tuple(range(50, 90))
    choices = [
        Scored((*context, 1), 1),
        Scored((*context, 2), 1),
        Scored((*context, 3, 4), 2),
        Scored((*context, 5), 1),
    ]
    (batch,) = score_batches(choices, tokens=512, logits=2**14, vocab_size=100)
    assert (batch.segment_ids > 0).sum() == len(context) + 1


def test_rows_are_a_multiple_and_batches_within_their_limits():
    asked = [Scored(tuple(range(n, n + 100)), 3) for n in range(50)]
    batches = score_batches(asked, tokens=1024, logits=2**20, vocab_size=256, multiple=4)
    assert all(batch.input_ids.shape == (8, 128) for batch in batches)


# --- encoding ----------------------------------------------------------------------------------------------------


def encoder(max_length=20):
    return RequestEncoder(ByteTokenizer.Config().build(), max_length)


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation():
    made, bos = encoder(), ByteTokenizer.Config().build().bos_id
    assert made.pair("ab ", "c", "x") == Scored((bos, 97, 98, 32, 99), 2)
    assert made.pair("", "c", "x") == Scored((bos, 99), 1)
    assert made.pair("  ", "c", "x") == Scored((bos, 32, 32, 99), 3)


def test_contexts_are_cut_from_the_left_and_counted():
    made = encoder(4)
    assert made.pair("abcdef", "gh", "x") == Scored((100, 101, 102, 103, 104), 2)
    assert made.prompt("abcdef", 2, "x") == (101, 102) and made.truncated == 2
    with pytest.raises(TaskError, match="x: the continuation 'ghijk'.* has 5 tokens, and the model takes 4"):
        made.pair("ab", "ghijk", "x")
    with pytest.raises(TaskError, match="answers of 4 tokens leave no room for a question"):
        made.prompt("ab", 4, "x")


def test_windows_score_each_token_of_a_text_once():
    made, bos = encoder(4), ByteTokenizer.Config().build().bos_id
    windows = made.whole("abcdefghij")
    scored = [token for ids, count in windows for token in ids[-count:]]
    assert scored == [bos, *b"abcdefghij"] and all(len(ids) <= 5 for ids, _ in windows)
    # The last window reads as much as it can of what comes before.
    assert windows[-1] == Scored((*b"fghij",), 3)


# --- metrics -----------------------------------------------------------------------------------------------------


def metrics(*names):
    return [TaskMetric(name=name) for name in names]


def test_accuracies_of_choices():
    item = Item("x", {}, (("q", " a"), ("q", " bcdef")), ("a", "bcdef"), (1,))
    answers = [Likelihood(-2.0, True), Likelihood(-5.0, False)]
    values = likelihood_values(metrics("acc", "acc_norm", "exact_match"), item, answers)
    # By sum the short one is likelier, by character the long one.
    assert values == {"acc": 0.0, "acc_norm": 1.0, "exact_match": 0.0}


def test_mutual_information_subtracts_what_a_choice_has_alone():
    item = Item("x", {}, (("q", " a"), ("q", " b"), ("", " a"), ("", " b")), ("a", "b"), (1,))
    answers = [Likelihood(x, False) for x in (-1.0, -2.0, -1.0, -4.0)]
    assert likelihood_values(metrics("acc", "acc_mutual_info"), item, answers) == {"acc": 0.0, "acc_mutual_info": 1.0}


def test_perplexities_weigh_documents_by_their_length():
    items = [Item("x", {}, (("", text),), is_rolling=True) for text in ("ab cd", "é")]
    each = [likelihood_values(metrics("byte_perplexity", "bits_per_byte"), i, [Likelihood(-7.0, False)]) for i in items]
    values = [one["byte_perplexity"] for one in each]
    assert values == [(-7.0, 5.0), (-7.0, 2.0)]
    assert aggregate(values, "weighted_perplexity") == pytest.approx(math.exp(2.0))
    assert aggregate(values, "bits_per_byte") == pytest.approx(2.0 / math.log(2))


@pytest.mark.parametrize(
    ("options", "is_right"),
    [
        ({}, False),
        ({"ignore_case": True}, False),
        ({"ignore_case": True, "ignore_punctuation": True}, True),
        ({"regexes_to_ignore": ["!", "T|t"]}, True),
    ],
)
def test_exact_match_and_what_it_ignores(options, is_right):
    metric = TaskMetric(name="exact_match", options=options)
    item = Item("x", {}, (("q", ""),), targets=("wrong", "two"))
    answer = "Two!" if "regexes_to_ignore" not in options else "wo!"
    assert text_values([metric], item, answer)["exact_match"] == float(is_right)


def half(answer, target, fields):
    return 0.5 if fields["n"] else math.nan


def test_a_function_scores_answers_and_a_bad_one_is_named():
    metric = [TaskMetric(name=f"{__name__}:half")]
    assert text_values(metric, Item("x", {"n": 1}, (("q", ""),), targets=("a",)), "b") == {f"{__name__}:half": 0.5}
    with pytest.raises(TaskError, match="returned nan for rows.jsonl:7"):
        text_values(metric, Item("rows.jsonl:7", {"n": 0}, (("q", ""),), targets=("a",)), "b")
    with pytest.raises(TaskError, match="raised KeyError: 'n'; for x"):
        text_values(metric, Item("x", {}, (("q", ""),), targets=("a",)), "b")


def test_filters_in_a_row():
    chain = FilterChain(name="f", steps=(("regex", {"regex_pattern": r"is (\w+)|= (\w+)", "group_select": -1}),))
    assert filtered(chain, "it is six, so x = Seven ") == "Seven" and filtered(chain, "none") == "[invalid]"
    lower = FilterChain(name="f", steps=(*chain.steps, ("lowercase", {}), ("take_first", {})))
    assert filtered(lower, "x = Seven") == "seven"
    assert "no option 'pattern'" in check_step("regex", {"pattern": "x"})


# --- errors ------------------------------------------------------------------------------------------------------


def test_errors_of_means_by_formula_and_of_others_by_resampling():
    chance = np.random.default_rng(0)
    values = chance.normal(1.0, 0.5, 400).tolist()
    error = standard_error(values, "mean")
    assert error == pytest.approx(np.std(values, ddof=1) / 20)
    # A perplexity exp(-mean) has that error times itself, to first order.
    negative = [-value for value in values]
    assert standard_error(negative, "perplexity") == pytest.approx(aggregate(negative, "perplexity") * error, rel=0.1)
    assert standard_error([1.0], "mean") is None


@pytest.mark.parametrize("aggregation", ["mean", "perplexity"])
def test_pairing_makes_intervals_narrow_and_they_hold_the_truth(aggregation):
    chance = np.random.default_rng(1)
    hard = chance.normal(0.0, 2.0, 300)
    one, other = (hard + chance.normal(shift, 0.1, 300) for shift in (0.0, 0.05))
    apart, low, high = paired_difference(one.tolist(), other.tolist(), aggregation)
    again = paired_difference(one.tolist(), other.tolist(), aggregation)
    assert (apart, low, high) == again and low < apart < high
    if aggregation == "mean":
        # Unpaired, the standard error alone is 0.16.
        assert low < 0.05 < high and high - low < 0.05
    same = paired_difference(one.tolist(), one.tolist(), aggregation)
    assert same == (0.0, 0.0, 0.0)
