"""Rewards that are weighed, raise, hang or return NaN; groups that are left out, or tried again."""

import threading
import time

import numpy as np
import pytest
from kanawa_runtime.rollouts.exchange import Exchange
from kanawa_runtime.rollouts.groups import GroupWriter, figures_of, merged
from kanawa_runtime.rollouts.judge import Judge, RewardError, overlong_penalty, reward_names
from kanawa_runtime.rollouts.prompts import Asked
from kanawa_runtime.rollouts.rewards import Rollout, exact_match, matching_tokens
from kanawa_runtime.rollouts.sampler import Drawn, RolloutError


def rollout(first, length=1):
    return Rollout(
        prompt_ids=(first,), completion_ids=(first,) * length, answer_ids=(1,), finish_reason="stop",
        record={"bonus": 10 * first},
    )  # fmt: skip


def bonus(one):
    return one.record["bonus"]


def fails(one):
    """Raises for 3, is not a number for 4, hangs for 5."""
    first = one.prompt_ids[0]
    if first == 3:
        message = "no such test"
        raise KeyError(message)
    if first == 5:
        time.sleep(30)
    return float("inf") if first == 4 else first


def test_each_reward_has_its_column_and_reads_those_of_the_record():
    judged = Judge([bonus, exact_match]).rate([rollout(1), rollout(2)])
    assert judged.values.tolist() == [[10, 1], [20, 0]]
    assert judged.failures == {}


def test_what_fails_is_found_by_kind_and_the_next_is_rated_all_the_same():
    began = time.monotonic()
    judged = Judge([fails], seconds=0.2).rate([rollout(first) for first in (1, 3, 4, 5, 2)])
    assert time.monotonic() - began < 10, "a hanging reward is waited for"
    np.testing.assert_array_equal(judged.values[:, 0], [1, np.nan, np.nan, np.nan, 2])
    assert {row: one.kind for row, one in judged.failures.items()} == {1: "raised", 2: "not_finite", 3: "timed_out"}
    assert "fails raised KeyError: 'no such test'; for the prompt [3]" in judged.failures[1].text
    assert "took longer than rollouts.reward_seconds=0.2 for the prompt [5]" in judged.failures[3].text


def test_names_are_short_and_each_its_own():
    assert reward_names([exact_match, matching_tokens, exact_match], has_overlong=True) == [
        "exact_match", "matching_tokens", "exact_match_2", "overlong",
    ]  # fmt: skip


@pytest.mark.parametrize(("length", "penalty"), [(80, 0), (90, -0.5), (100, -1)])
def test_overlong_rollouts_lose_up_to_one(length, penalty):
    # DAPO, equation 13, with L_max 100 and L_cache 20.
    assert overlong_penalty(length, 100, 20) == penalty
    judge = Judge([exact_match], overlong_tokens=20, new_tokens=100)
    assert judge.rate([rollout(1, length)]).values.tolist() == [[0, penalty]]


def writer(*rewards, **changes):
    sizes = {
        "judge": Judge(rewards), "weights": np.ones(len(rewards)), "size": 6, "rows": range(6), "group_size": 2,
        "attempts": 1, "skips_failed": False, "tokenizer": None, "exchange": Exchange("test"),
    }  # fmt: skip
    return GroupWriter(**{**sizes, **changes})


def written(one, prompts, draws=lambda place, attempt: place % 2):
    """Groups of two with these prompts by attempt; what is drawn is a number by place and attempt."""
    seen = []

    def asked(place, attempt):
        seen.append((place, attempt))
        return Asked((prompts[attempt][place // 2],), (1,), {})

    def draw(questions, places, attempt):
        return [Drawn((draws(place, attempt),), (-1.0,), "length") for place in places]

    return one.write(asked, draw), seen


def test_rewards_are_summed_by_their_weights():
    one = writer(matching_tokens, bonus_of_odd, weights=np.asarray([1.0, 0.25]))
    groups, _ = written(one, [(7, 8, 9)])
    assert one.totals(groups.rewards).tolist() == [0, 1.25, 0, 1.25, 0, 1.25]
    assert figures_of(groups, one) == {
        "reward": 0.625, "groups_alike": 0.0, "tokens": 6.0, "rewards": {"matching_tokens": 0.5, "bonus_of_odd": 0.5},
    }  # fmt: skip


def bonus_of_odd(one):
    return one.completion_ids[0] % 2


def test_groups_that_are_alike_try_other_prompts_and_the_rest_stays():
    # Only what is drawn for the second group at its first attempt is alike.
    one = writer(bonus_of_odd, attempts=3)
    groups, seen = written(
        one, [(1, 2, 3), (4, 5, 6), (7, 8, 9)], lambda place, attempt: 1 if place in (2, 3) and not attempt else place
    )
    assert [asked.prompt[0] for asked in groups.asked] == [1, 1, 5, 5, 3, 3]
    assert seen[6:] == [(2, 1), (3, 1)]
    assert (groups.redrawn, figures_of(groups, one)["groups_redrawn"], figures_of(groups, one)["groups_alike"]) == (
        1,
        1,
        0,
    )


def test_groups_that_stay_alike_are_trained_on_and_counted():
    one = writer(bonus_of_odd, attempts=2)
    groups, _ = written(one, [(1, 2, 3), (4, 5, 6)], lambda place, attempt: 1)
    assert [asked.prompt[0] for asked in groups.asked] == [4, 4, 5, 5, 6, 6]
    assert figures_of(groups, one)["groups_alike"] == 1.0


def test_a_group_with_a_failed_reward_is_left_out_and_counted():
    one = writer(fails, skips_failed=True)
    groups, _ = written(one, [(1, 3, 2)])
    assert groups.left_out.tolist() == [False, False, True, True, False, False]
    figures = figures_of(groups, one)
    assert (figures["reward"], figures["groups_left_out"], figures["reward_failures"]) == (1.5, 1, {"raised": 2})
    with pytest.raises(
        RewardError, match="every group of the batch has a reward that failed; the first: .*no such test"
    ):
        written(one, [(3, 3, 4)])


def test_without_leave_it_ends_the_run():
    with pytest.raises(RewardError, match=r"no such test.*Fix it.*rollouts\.skips_failed=true the group is left out"):
        written(writer(fails), [(1, 3, 2)])


def told(places, digests=None, **changes):
    one = {
        "places": places, "values": [[1.0 * place] for place in places], "tokens": [1 for _ in places],
        "digests": digests or [0 for _ in places], "failures": [None for _ in places],
    }  # fmt: skip
    return {**one, **changes}


def test_processes_that_hold_the_same_rows_agree_on_the_first_ones_rewards():
    other = told([1, 2], values=[[9.0], [2.0]])
    assert [(place, value) for place, value, _, _ in merged([told([0, 1]), other])] == [
        (0, [0.0]),
        (1, [1.0]),
        (2, [2.0]),
    ]
    with pytest.raises(RolloutError, match="row 1 of the batch was drawn differently by process 1"):
        merged([told([0, 1]), told([1, 2], digests=[5, 0])])
    with pytest.raises(RolloutError, match="process 1 can't write its rollouts: KeyError"):
        merged([told([0]), {"error": "KeyError: 'x'"}])


def test_no_thread_is_left_by_rewards_that_end():
    before = threading.active_count()
    judge = Judge([exact_match], seconds=5.0)
    for _ in range(3):
        judge.rate([rollout(1)] * 4)
    assert threading.active_count() <= before + 1
