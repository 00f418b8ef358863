"""Provenance: stage, file and line, kept through every operation, never part of the value."""

import inspect

import pytest
from kanawa.config import (
    Config,
    Configurable,
    Origin,
    PathError,
    digest,
    from_json,
    origin,
    replace,
    to_json,
    to_text,
)


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6
        bias: bool = False


class OtherNorm(Norm):
    class Config(Norm.Config):
        groups: int = 1


class Model(Config):
    norm: Norm.Config = Norm.Config()
    sizes: tuple[int, ...] = (1,)


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_default_points_at_the_class() -> None:
    (made,) = Model().origin_history("norm.eps")
    assert (made.stage, made.file, made.value) == ("default", __file__, "1e-06")
    assert made.detail == f"{__name__}:Norm.Config"
    with open(__file__) as source:
        assert "class Config" in source.readlines()[made.line - 1]


def test_redefault_points_at_the_subclass() -> None:
    class Sub(Norm.Config):
        eps: float = 1e-5

    assert Sub().origin_history("eps")[0].detail.endswith("Sub")
    assert Sub().origin_history("bias")[0].detail.endswith("Norm.Config")


def test_stages_nest_and_history_appends() -> None:
    model = Model()
    with origin("recipe", "llama2-7b"):
        model.norm.eps = 1e-5
        recipe_line = line() - 1
        with origin("modifier", "x"):
            model.set_path("norm.eps", 1e-4)
    model.norm.set(eps=1e-3)
    history = model.origin_history("norm.eps")
    assert [h.stage for h in history] == ["default", "recipe", "modifier", "code"]
    assert [h.value for h in history] == ["1e-06", "1e-05", "0.0001", "0.001"]
    assert history[1] == Origin("recipe", "llama2-7b", __file__, recipe_line, "1e-05")
    assert history[3].where == f"{__file__}:{line() - 5}"


def test_constructor_and_clone_record_the_calling_line() -> None:
    norm = Norm.Config(eps=1).clone(bias=True)
    here = line() - 1
    assert norm.origin_history("eps")[-1][2:4] == (__file__, here)
    assert norm.origin_history("bias")[-1][2:4] == (__file__, here)


def test_the_stage_ends_when_the_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), origin("recipe"):
        _ = 1 / 0
    assert Norm.Config(eps=1).origin_history("eps")[-1].stage == "code"


def test_origins_are_not_part_of_the_value() -> None:
    plain = Model()
    with origin("recipe"):
        set_to_default = Model(sizes=(1,))
    assert plain == set_to_default
    assert digest(plain) == digest(set_to_default)
    assert to_text(plain) == to_text(set_to_default)
    assert to_json(plain) == to_json(set_to_default)
    assert hash(plain.freeze()) == hash(set_to_default.freeze())


def test_a_place_in_a_container_has_its_fields_history() -> None:
    model = Model().set_path("sizes[0]", 5)
    assert [h.value for h in model.origin_history("sizes[0]")] == ["(1,)", "(5,)"]


def test_replace_keeps_the_origin_of_carried_fields() -> None:
    model = Model()
    with origin("recipe", "base"):
        model.norm.eps = 1e-3
    with origin("modifier", "swap"):
        replace(model, target=Norm, new=OtherNorm.Config(groups=2))
    assert model.norm.eps == 1e-3
    assert [h.stage for h in model.origin_history("norm.eps")] == ["default", "recipe"]
    assert [h.stage for h in model.origin_history("norm.groups")] == ["default", "modifier"]
    assert model.origin_history("norm")[-1].detail == "swap"


def test_json_carries_origins_when_asked() -> None:
    model = Model()
    with origin("recipe", "base"):
        model.norm.eps = 1e-3
    data = to_json(model, origins=True)
    assert list(data["$origins"]) == ["norm.eps"]
    loaded = from_json(data)
    assert loaded.origin_history("norm.eps") == model.origin_history("norm.eps")
    with origin("file"):
        bare = from_json(to_json(model))
    assert [h.stage for h in bare.origin_history("norm.eps")] == ["default", "file"]
    assert [h.stage for h in bare.origin_history("norm.bias")] == ["default"]


def test_history_of_nothing() -> None:
    with pytest.raises(PathError, match="did you mean 'norm'"):
        Model().origin_history("nrom.eps")
    with pytest.raises(PathError, match="the root of a config is not a field"):
        Model().origin_history("")
