"""Ranges declared with fields: refused on assignment, from the command line and by `config_for`, and shown."""

import math
from typing import Annotated

import kanawa as kn
import pytest
from kanawa.config import FieldTypeError, OverrideError, apply_override
from kanawa.config.field_types import annotation_text


class Ranged(kn.Config):
    heads: kn.Size = kn.REQUIRED
    window: kn.Size | None = None
    warmup: kn.Count = 0
    rate: kn.NonNegative = 0.1
    decay: kn.Partial = 0.9
    share: kn.Fraction = 1.0
    scale: kn.Positive = 1.0
    offset: kn.Finite = 0.0
    shape: tuple[kn.Size, ...] = (1,)
    axes: dict[str, kn.Size] = {}
    even: Annotated[int, "others read this", kn.Range(2, 8)] = 2


BAD = [
    ("heads", -6, r"expected int \(at least 1\), got -6 \(int\)$"),
    ("heads", 2**31, "it is more than 2,147,483,647"),
    ("window", 0, r"int \(at least 1\) \| None"),
    ("warmup", -1, "at least 0"),
    ("rate", math.nan, r"float \(at least 0, finite\)"),
    ("rate", math.inf, "finite"),
    ("decay", 1.0, r"float \(at least 0, below 1\)"),
    ("decay", 2, "below 1"),
    ("share", 1.5, "at most 1"),
    ("scale", 0, "above 0, finite"),
    ("offset", -math.inf, r"float \(finite\)"),
    ("offset", math.nan, r"float \(finite\)"),
    ("shape", (2, 0), r"shape\[1\]: expected int \(at least 1.*declared tuple\[int"),
    ("axes", {"fsdp": 0}, r"axes\['fsdp'\]: expected int"),
    ("even", 9, r"int \(at least 2, at most 8\)"),
    ("offset", 10**400, "doesn't fit 64 bits"),
]


@pytest.mark.parametrize(("name", "value", "told"), BAD)
def test_a_value_outside_is_refused_with_the_range(name, value, told):
    cfg = Ranged(heads=2)
    before = getattr(cfg, name)
    with pytest.raises(FieldTypeError, match=told):
        setattr(cfg, name, value)
    assert getattr(cfg, name) == before


def test_the_ends_are_inside():
    cfg = Ranged(heads=1, window=None, warmup=0, rate=0, decay=0.0, share=1, scale=5e-324, shape=(1, 2**31 - 1), even=8)
    assert (cfg.rate, cfg.share, cfg.even) == (0.0, 1.0, 8)
    cfg.freeze()


def test_a_default_outside_is_the_classes_own_error():
    class Wrong(kn.Config):
        heads: kn.Size = 0

    with pytest.raises(FieldTypeError, match=r"Wrong.heads: expected int \(at least 1"):
        Wrong()


def test_the_command_line_hears_of_the_range():
    with pytest.raises(OverrideError, match=r"heads=-6: expected int \(at least 1\) \(Ranged.heads\)"):
        apply_override(Ranged(), "heads=-6")
    with pytest.raises(OverrideError, match="rate=nan: expected float"):
        apply_override(Ranged(), "rate=nan")


def configured(size: kn.Size, rate: Annotated[float, kn.Range(0, 1)] = 0.5) -> None:
    """A stranger's function with ranges in its signature."""


def test_parameters_have_ranges_too():
    cfg = kn.config_for(configured, size=3)
    with pytest.raises(FieldTypeError, match=r"float \(at least 0, at most 1\)"):
        cfg.rate = 1.5
    with pytest.raises(FieldTypeError, match="at least 1"):
        cfg.size = 0


def test_containers_changed_in_place_are_checked_when_frozen():
    cfg = Ranged(heads=1, axes={"fsdp": 2})
    cfg.axes["fsdp"] = -1
    with pytest.raises(kn.KanawaError, match=r"\['fsdp'\]: expected int \(at least 1"):
        cfg.freeze()


def test_text_of_a_range_is_readable():
    assert annotation_text(kn.Size | None) == "int (at least 1) | None"
    assert annotation_text(kn.Positive) == "float (above 0, finite)"
    assert annotation_text(Annotated[float, kn.Range()]) == "float (not NaN)"
    assert annotation_text(Annotated[int, "unit"]) == "int"
