"""Sentinels refuse every use and survive copying."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from kanawa.config import FROM_PARENT, REQUIRED, SentinelError

USES: list[Callable[[Any], Any]] = [
    bool,
    len,
    iter,
    int,
    float,
    range,
    operator.neg,
    lambda s: s + 1,
    lambda s: 1 + s,
    lambda s: s * 2.0,
    lambda s: 2 // s,
    lambda s: s**2,
    lambda s: s[0],
    lambda s: s(),
    lambda s: s < 3,
    lambda s: s >= 3,
    lambda s: 1 in s,
    lambda s: [1, 2][s],
]


@pytest.mark.parametrize("use", USES)
def test_any_use_names_the_sentinel(use: Callable[[Any], Any]) -> None:
    with pytest.raises(SentinelError, match="REQUIRED is not a value: the user sets this field"):
        use(REQUIRED)


def test_from_parent_has_its_own_advice() -> None:
    with pytest.raises(SentinelError, match="FROM_PARENT is not a value: the parent sets"):
        FROM_PARENT + 1


@pytest.mark.parametrize("sentinel", [REQUIRED, FROM_PARENT])
def test_copies_are_the_same_object(sentinel: Any) -> None:
    assert pickle.loads(pickle.dumps(sentinel)) is sentinel
    assert copy.deepcopy(sentinel) is copy.copy(sentinel) is sentinel
    assert repr(sentinel) in ("REQUIRED", "FROM_PARENT")
    assert sentinel != 1


def test_what_is_asked_of_an_unset_field_is_told_by_name():
    with pytest.raises(SentinelError, match=r"FROM_PARENT is not a value, nothing is inside \(build was asked for\)"):
        FROM_PARENT.build()
    assert not hasattr(REQUIRED, "build")
