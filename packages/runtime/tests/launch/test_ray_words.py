"""What a gang on Ray tells of a member that is lost; without Ray."""

import sys
from types import SimpleNamespace

from kanawa_runtime.launch.ray.gang import Gang


class LostError(Exception):
    """What Ray raises for an actor that is gone."""


def answering(*answers):
    """Returns a method of an actor that gives one answer after the other."""
    left = list(answers)
    return SimpleNamespace(remote=lambda *arguments: left.pop(0))


def get(answer, timeout=None):
    del timeout
    if answer is LostError:
        raise LostError
    return answer


def test_a_first_member_that_is_lost_between_two_questions_has_said_what_it_said(monkeypatch):
    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=LostError))
    monkeypatch.setitem(sys.modules, "ray", ray)
    gang = Gang.__new__(Gang)
    gang._facts, gang._said, gang._stopping = {"restarts": 0, "stops": 0}, "", False
    gang._settings = {"settle_seconds": 60.0}
    member = {"address": answering("10.0.0.1:1"), "start": answering(1), "code": answering(None, 1)}
    gang._members = [SimpleNamespace(**member, said=answering("the disk is full", LostError))]
    assert gang._see_through() == [1]
    assert gang.logs() == "the disk is full"
