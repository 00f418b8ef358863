"""A device that waits for its host is told of, once; a busy one, a short step and a passing delay are not."""

import random

import pytest
from kanawa_runtime.train.step_watch import Idleness


def told(steps, seconds=0.1):
    idleness = Idleness()
    return [at for at, done in enumerate(steps) if idleness.took(was_done=done, step_seconds=seconds) is not None]


def test_a_device_that_waits_is_told_of_once_and_again_after_it_was_busy():
    assert told([True] * 200) == [49]
    assert told([True] * 60 + [False] * 60 + [True] * 60) == [49, 164]


def test_noise_is_nothing():
    rng = random.Random(0)
    assert told([rng.random() < 0.5 for _ in range(1000)]) == []
    assert told([True] * 40 + [False] * 60) == []
    assert told([True] * 200, seconds=0.001) == []


def test_it_says_in_how_many_steps():
    idleness = Idleness()
    shares = [idleness.took(was_done=at % 20 != 0, step_seconds=0.5) for at in range(50)]
    assert shares[-1] == pytest.approx(0.94)
