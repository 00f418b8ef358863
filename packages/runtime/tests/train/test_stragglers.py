"""Who keeps the others waiting, from recorded times: named where it is so, and nobody where it is noise."""

import random

from kanawa_runtime.train.step_watch import Window, stragglers

STEP = 1.0


def windows(rng, count, ranks=4, slow=None, by=0.5):
    """Own parts of about a fifth of a step with the noise of a busy host: now and then one window is twice that."""
    made = []
    for _ in range(count):
        own = [0.2 * rng.lognormvariate(0, 0.1) + (0.2 if rng.random() < 0.02 else 0.0) for _ in range(ranks)]
        if slow is not None:
            own[slow] += by * STEP
        made.append(Window(tuple(own), STEP))
    return made


def test_a_rank_that_is_half_a_step_slower_is_named_within_fifty_steps():
    rng = random.Random(1)
    for slow in range(4):
        history = [*windows(rng, 4), *windows(rng, 3, slow=slow)]
        assert [one.rank for one in stragglers(history, 0.2)] == [slow]


def test_a_thousand_clean_windows_name_nobody():
    history = windows(random.Random(2), 1000)
    assert not [at for at in range(3, 1000) if stragglers(history[:at][-3:], 0.2)]


def test_of_two_the_slower_one_is_named():
    (one,) = stragglers([Window((0.1, 0.7), STEP)] * 3, 0.2)
    assert (one.rank, one.own_seconds, one.median_seconds) == (1, 0.7, 0.1)


def test_what_happens_once_or_to_all_is_nobodys_fault():
    usual = Window((0.1, 0.1, 0.1), STEP)
    assert stragglers([usual, Window((0.1, 0.9, 0.1), STEP), usual], 0.2) == []
    assert stragglers([Window((0.9, 0.9, 0.9), STEP)] * 3, 0.2) == []
    assert stragglers([Window((0.0001, 0.0004), 0.0005)] * 3, 0.2) == []
    assert stragglers([Window((0.1, 0.9), STEP)] * 2, 0.2) == []
