"""dtypes that can't work are refused where they are set; numbers that switch learning off are warned of."""

import kanawa as kn
import pytest
from kanawa.errors import KanawaError


@pytest.mark.parametrize(
    "override",
    [
        "precision.compute=float64",
        "precision.accumulate=int32",
        "learner.optimizer.newton_schulz_dtype=int8",
        "learner.optimizer.newton_schulz_dtype=complex64",
    ],
)
def test_a_dtype_that_cannot_work_is_refused_with_what_can(override):
    path, _, value = override.partition("=")
    with pytest.raises(KanawaError, match=rf"{path}={value}: expected Literal\['float32', 'bfloat16', 'float16'\]"):
        kn.compose("quickstart", overrides=[override])


def test_moments_never_become_integers():
    adamw = kn.component("optimizers", "adamw").Config
    with pytest.raises(KanawaError, match=r"first_moment_dtype: expected Literal\['float32', .* got 'int8'"):
        adamw(first_moment_dtype="int8")


SMALL = "is 0.0, so small that it switches off what it is for"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("learner.schedule.peak", "0", SMALL),
        ("learner.schedule.peak", "1e30", "is 1e+30, so large that it drowns all else"),
        ("model.head.logit_scale", "0", f"{SMALL}; its default is 1.0"),
        ("learner.optimizer.weight_decay", "1e30", "is 1e+30, so large that it drowns all else; its default is 0.1"),
    ],
)
def test_a_number_that_switches_learning_off_is_warned_of(path, value, said, caplog):
    kn.compose("quickstart", overrides=[f"{path}={value}"])
    assert [record.getMessage() for record in caplog.records] == [f"{path} {said}"]


def test_shipped_experiments_have_no_odd_numbers(caplog):
    kn.compose("quickstart")
    assert not caplog.records
