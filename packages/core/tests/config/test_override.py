"""Overrides are read by the field's type."""

import enum
import json
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from kanawa.config import (
    REQUIRED,
    Config,
    Configurable,
    Named,
    OverrideError,
    PathError,
    apply_override,
    config_for,
    connect_catalog,
    origin,
)
from kanawa.errors import UnknownNameError, did_you_mean


class Shade(enum.Enum):
    LIGHT = 1
    DARK = 2


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6


class RMSNorm(Norm):
    pass


class Model(Config):
    width: int = 1
    rate: float = 1.0
    flag: bool = False
    name: str = "x"
    maybe: int | None = 3
    text: str | None = None
    mode: Literal["fast", "slow"] | None = "fast"
    shade: Shade = Shade.LIGHT
    axes: tuple[str, ...] = ()
    sizes: list[int] = [1, 2]
    mesh: dict[str, int] = {"data": 1}
    function: Callable[..., Any] = math.sqrt
    kind: type[Norm] = Norm
    norm: Norm.Config = Norm.Config()
    layers: list[Norm.Config] = [Norm.Config(), Norm.Config()]
    anything: Any = None
    config: Config | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("width=8", 8),
        ("width = 8", 8),
        ("width=1_000", 1000),
        ("width=REQUIRED", REQUIRED),
        ("rate=1", 1.0),
        ("rate=1e-5", 1e-5),
        ("rate=-inf", -math.inf),
        ("flag=true", True),
        ("flag=False", False),
        ("name=5", "5"),
        ("name=true", "true"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ('name="quoted"', "quoted"),
        ("name=None", "None"),
        ("maybe=None", None),
        ("maybe=null", None),
        ("maybe=4", 4),
        ("text=None", None),
        ("text=none", "none"),
        ("mode=slow", "slow"),
        ("shade=DARK", Shade.DARK),
        ("shade=Shade.DARK", Shade.DARK),
        ('axes=["a", "b"]', ("a", "b")),
        ("axes=('a',)", ("a",)),
        ("sizes[1]=7", [1, 7]),
        ('mesh={"data": 2, "model": 4}', {"data": 2, "model": 4}),
        ("mesh.model=4", {"data": 1, "model": 4}),
        ('mesh["a=b"]=4', {"data": 1, "a=b": 4}),
        ("function=json:dumps", json.dumps),
        (f"kind={__name__}:RMSNorm", RMSNorm),
        (f"norm={__name__}:RMSNorm", RMSNorm.Config()),
        (f"norm={__name__}:RMSNorm.Config", RMSNorm.Config()),
        (f'norm={{"$type": "{__name__}:RMSNorm.Config", "eps": 1}}', RMSNorm.Config(eps=1)),
        ("anything=[1, null]", [1, None]),
        ("anything=word", "word"),
        ("config=json:dumps", config_for(json.dumps)),
    ],
)
def test_read_by_type(text: str, value: Any) -> None:
    model = Model()
    path = apply_override(model, text)
    field = path.partition("[")[0].partition(".")[0]
    assert Model(**{field: vars(model)[field]}) == Model(**{field: value})
    assert type(vars(model)[field]) is type(value)


def test_nested_path_and_origin() -> None:
    model = Model()
    with origin("command line", "--set"):
        assert apply_override(model, "layers[1].eps=1e-5") == "layers[1].eps"
    assert model.layers[1].eps == 1e-5
    assert model.origin_history("layers[1].eps")[-1].stage == "command line"


def test_catalog_names() -> None:
    connect_catalog(load=catalog)
    model = Model()
    apply_override(model, "norm=rms")
    assert type(model.norm) is RMSNorm.Config


def catalog(name: str, kind: str = "") -> list[Any]:
    meanings = {"rms": [RMSNorm], "norm": [math.sqrt, Norm], "root": [math.sqrt]}
    if name not in meanings:
        message = f"no component is named {name!r}{did_you_mean(name, meanings)}"
        raise UnknownNameError(message)
    return meanings[name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('layers=["rms", "norm"]', [RMSNorm.Config(), Norm.Config()]),
        ("layers=[rms,norm]", [RMSNorm.Config(), Norm.Config()]),
        ('layers=["rms"]', [RMSNorm.Config()]),
        ('pair=["rms", 3]', (RMSNorm.Config(), 3)),
        ('named={"a": "rms"}', {"a": RMSNorm.Config()}),
        ('functions=["root", "math:cos"]', (math.sqrt, math.cos)),
        ('kinds=["rms", "norm"]', (RMSNorm, Norm)),
        ('nested={"a": ["rms"]}', {"a": (RMSNorm.Config(),)}),
        ("axes=[data,fsdp]", ("data", "fsdp")),
    ],
)
def test_catalog_names_in_containers(text: str, value: Any) -> None:
    class Slots(Model):
        pair: tuple[Norm.Config, int] = (Norm.Config(), 1)
        named: dict[str, Norm.Config] = {}
        functions: tuple[Callable[..., Any], ...] = ()
        kinds: tuple[type[Norm], ...] = ()
        nested: dict[str, tuple[Norm.Config, ...]] = {}

    connect_catalog(load=catalog)
    slots = Slots()
    assert vars(slots)[apply_override(slots, text)] == value


def test_a_name_of_several_things_means_the_one_that_fits() -> None:
    connect_catalog(load=catalog)
    model = Model()
    for text in ("norm=norm", "function=norm", "kind=norm"):
        apply_override(model, text)
    assert (type(model.norm), model.function, model.kind) == (Norm.Config, math.sqrt, Norm)


def recipe_of_norm(*, eps: float = 1e-3, **rest: Any) -> Norm.Config:
    return Norm.Config(eps=eps, **rest)


def test_a_recipe_may_pass_other_arguments_on() -> None:
    connect_catalog(load=lambda name, kind="": [recipe_of_norm])
    model = Model()
    apply_override(model, "norm=recipe")
    assert model.norm.eps == 1e-3


def test_a_wrong_name_in_a_list_is_explained() -> None:
    connect_catalog(load=catalog)
    with pytest.raises(OverrideError, match=r"layers=\[\"rsm\"\]: expected list\[Norm.Config\].*did you mean 'rms'"):
        apply_override(Model(), 'layers=["rsm"]')
    with pytest.raises(OverrideError, match=r'layers=\["root"\]: expected list\[Norm.Config\] \(Model.layers\)'):
        apply_override(Model(), 'layers=["root"]')


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("width", OverrideError, "can't read the override 'width': write path=value"),
        ("widht=3", PathError, "has no field 'widht'; did you mean 'width'"),
        ("layers[5].eps=3", PathError, "layers has 2 items"),
        ("width=wide", OverrideError, "width=wide: expected int (Model.width)"),
        ("width=1.5", OverrideError, "width=1.5: expected int (Model.width)"),
        ("flag=1", OverrideError, "flag=1: expected bool"),
        ("mode=fats", OverrideError, "'slow'] | None (Model.mode); did you mean 'fast'"),
        ("shade=DRAK", OverrideError, "did you mean 'DARK'"),
        ("layers[0].eps=x", OverrideError, "layers[0].eps=x: expected float (Norm.Config.eps)"),
        ("sizes=[1, true]", OverrideError, "sizes=[1, true]: expected list[int]"),
        ("function=json:dump_s", OverrideError, "did you mean 'dumps'"),
        ("kind=json:dumps", OverrideError, "expected type[Norm]"),
        ("norm=nothing", OverrideError, "Norm.Config (Model.norm); can't resolve 'nothing'"),
    ],
)  # fmt: skip
def test_refused(text: str, error: type[Exception], message: str) -> None:
    model = Model()
    with pytest.raises(error) as caught:
        apply_override(model, text)
    assert message in str(caught.value)
    assert model == Model()


def test_a_field_that_says_its_kind_hears_of_nothing_else():
    class Owner(Config):
        root: Annotated[Callable[..., Any], Named("roots")] = math.exp

    def of_kind(name: str, kind: str = "") -> list[Any]:
        assert kind == "roots"
        return [math.sqrt]

    connect_catalog(load=of_kind)
    cfg = Owner()
    apply_override(cfg, "root=root")
    assert cfg.root is math.sqrt
