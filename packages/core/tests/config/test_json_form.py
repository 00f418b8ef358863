"""JSON loads back to an equal config; renames follow; newer versions say what to upgrade."""

import enum
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.config import (
    FROM_PARENT,
    REQUIRED,
    Config,
    ConfigLoadError,
    Configurable,
    FieldTypeError,
    digest,
    from_json,
    to_json,
)


class Shade(enum.Enum):
    LIGHT = "l"
    DARK = "d"


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6
        input_dim: int = FROM_PARENT


class Model(Configurable):
    class Config(Configurable.Config):
        SCHEMA_VERSION = 3
        RENAMED = {"size": "width"}
        width: int = REQUIRED
        norm: Norm.Config | None = None
        axes: tuple[str, ...] = ("embed",)
        anything: Any = None
        mesh: dict[str, tuple[int, ...] | float] = {}
        norms: list[Norm.Config] = []


INTEGERS = st.integers(-(2**63), 2**64 - 1)  # what a field of integers takes
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(),
    st.text(),
    st.sampled_from(Shade),
    st.sampled_from([math.sqrt, Norm, Norm.Config, json.dumps, REQUIRED, FROM_PARENT]),
    st.builds(Norm.Config, eps=st.floats()),
).filter(lambda v: v is not REQUIRED and v is not FROM_PARENT)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.just("$type")), inner, max_size=3),
    ),
    max_leaves=8,
)
MODELS = st.builds(
    Model.Config,
    width=st.one_of(INTEGERS, st.just(REQUIRED), st.just(FROM_PARENT)),
    norm=st.one_of(st.none(), st.builds(Norm.Config, eps=st.floats())),
    axes=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    anything=VALUES,
    mesh=st.dictionaries(st.text(max_size=4), st.one_of(st.floats(), st.lists(INTEGERS, max_size=2).map(tuple))),
    norms=st.lists(st.builds(Norm.Config), max_size=2),
)


@settings(deadline=None, max_examples=60)
@given(MODELS)
def test_round_trip_through_text(model: Model.Config) -> None:
    text = json.dumps(to_json(model, origins=True), allow_nan=False)
    loaded = from_json(json.loads(text))
    assert loaded == model
    assert digest(loaded, "all") == digest(model, "all")
    assert loaded.origin_history("anything") == model.origin_history("anything")
    assert from_json(to_json(model)) == model


def test_form() -> None:
    assert to_json(Model.Config(width=1, norm=Norm.Config(), anything=(1, float("inf")))) == {
        "$type": f"{__name__}:Model.Config",
        "$version": 3,
        "width": 1,
        "norm": {
            "$type": f"{__name__}:Norm.Config",
            "$version": 1,
            "eps": 1e-6,
            "input_dim": {"$unset": "FROM_PARENT"},
        },
        "axes": ["embed"],
        "anything": {"$tuple": [1, {"$float": "inf"}]},
        "mesh": {},
        "norms": [],
    }


def data(**changes: Any) -> dict[str, Any]:
    return {"$type": f"{__name__}:Model.Config", "$version": 3, "width": 4, **changes}


def test_a_frozen_config_loads_back_mutable() -> None:
    frozen = Model.Config(width=1, norms=[Norm.Config()]).freeze()
    loaded: Any = from_json(to_json(frozen))
    assert loaded == frozen
    loaded.norms[0].eps = 1


def test_renamed_fields_follow_with_their_origins() -> None:
    old = data(**{"$version": 1, "size": 7})
    del old["width"]
    old["$origins"] = {"size": [["recipe", "x", "f.py", 3]]}
    loaded: Any = from_json(old)
    assert loaded.width == 7
    assert loaded.origin_history("width")[-1][:4] == ("recipe", "x", "f.py", 3)


def test_fields_added_since_keep_their_defaults() -> None:
    assert from_json(data(**{"$version": 1})).get("axes") == ("embed",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"$version": 4},
            f"was written as version 4, the installed {__name__.partition('.')[0]} knows version 3: upgrade",
        ),
        ({"widht": 1}, "Model.Config has no field 'widht'; did you mean 'width'"),
        ({"size": 1}, "both 'size' and its new name 'width' are given"),
        ({"$type": "no_such:X"}, "importing 'no_such' failed"),
        ({"$type": "kanawa:compose"}, "'kanawa:compose' is not a Config class"),
        ({"norm": {"$type": f"{__name__}:Norm.Confg"}}, "norm: can't load"),
        (
            {"norm": {"$type": f"{__name__}:Norm.Config", "ep": 1}},
            "norm: Norm.Config has no field 'ep'",
        ),
        (
            {"anything": {"$future": 1}},
            "anything: can't read {'$future': 1}: it was written by a newer",
        ),
        ({"anything": {"$enum": f"{__name__}:Shade", "member": "LIHGT"}}, "did you mean 'LIGHT'"),
    ],
)
def test_what_cannot_be_loaded(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigLoadError) as caught:
        from_json(data(**changes))
    assert message in str(caught.value)


def test_wrong_types_give_the_path() -> None:
    norms = [{"$type": f"{__name__}:Norm.Config", "eps": "x"}]
    with pytest.raises(FieldTypeError, match=r"norms\[0\].eps \(Norm.Config.eps\): expected float"):
        from_json(data(norms=norms))


def test_not_a_config() -> None:
    with pytest.raises(ConfigLoadError, match="expected a config object"):
        from_json({"a": 1})


def test_a_local_class_says_it_cannot_load() -> None:
    class Local(Config):
        x: int = 1

    with pytest.raises(ConfigLoadError, match="defined inside a function"):
        from_json(to_json(Local()))
