"""Assignment checks types, converts int to float and list to tuple, and names what was expected."""

import collections.abc
import enum
import functools
import math
from typing import Annotated, Any, Literal, Optional

import pytest
from kanawa.config import Config, Configurable, FieldTypeError


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Norm(Configurable):
    class Config(Configurable.Config):
        eps: float = 1e-6


class RMSNorm(Norm):
    pass


class Everything(Config):
    flag: bool = False
    count: int = 0
    rate: float = 0
    name: str = ""
    maybe: int | None = None
    old_style: Optional[str] = None  # noqa: UP045
    either: int | float | str = 0
    mode: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    axes: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "x")
    sizes: list[float] = []
    mesh: dict[str, int] = {}
    items: collections.abc.Sequence[int] = ()
    kind: type[Norm] = Norm
    function: collections.abc.Callable[[float], float] = math.sqrt
    anything: Any = None
    norm: Norm.Config = Norm.Config()
    norms: tuple[Norm.Config, ...] = ()
    noted: Annotated[int, "bytes"] = 0
    nested: dict[str, tuple[int, ...]] = {}


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("rate", 3, 3.0),
        ("maybe", None, None),
        ("either", 1, 1),
        ("either", 1.0, 1.0),
        ("mode", 3, 3),
        ("colour", Colour.BLUE, Colour.BLUE),
        ("axes", ["a", "b"], ("a", "b")),
        ("sizes", (1, 2.5), [1.0, 2.5]),
        ("items", [1], (1,)),
        ("kind", RMSNorm, RMSNorm),
        ("function", math.cos, math.cos),
        ("anything", [1, {"a": (None, True)}], [1, {"a": (None, True)}]),
        ("nested", {"a": [1]}, {"a": (1,)}),
        ("old_style", "x", "x"),
        ("noted", 4, 4),
    ],
)
def test_admitted(field: str, given: Any, stored: Any) -> None:
    value = vars(Everything(**{field: given}))[field]
    assert value == stored
    assert type(value) is type(stored)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("flag", 1, "Everything.flag: expected bool, got 1 (int)"),
        ("count", True, "Everything.count: expected int, got True (bool)"),
        ("count", 1.0, "Everything.count: expected int, got 1.0 (float)"),
        ("rate", "1", "Everything.rate: expected float, got '1' (str)"),
        ("rate", False, "Everything.rate: expected float, got False (bool)"),
        ("maybe", "x", "Everything.maybe: expected int | None, got 'x' (str)"),
        ("mode", "c", "Everything.mode: expected Literal['a', 'b', 3], got 'c' (str)"),
        ("colour", 1, "Everything.colour: expected Colour, got 1 (int)"),
        ("axes", ("a", 1), "Everything.axes[1]: expected str (declared tuple[str, ...]), got 1"),
        ("axes", "abc", "Everything.axes: expected tuple[str, ...], got 'abc' (str)"),
        ("pair", (1,), "Everything.pair: expected tuple[int, str], got (1,) (tuple)"),
        (
            "mesh",
            {"a": "b"},
            "Everything.mesh['a']: expected int (declared dict[str, int]), got 'b'",
        ),
        ("mesh", {1: 1}, "the key 1 is not a str"),
        ("nested", {"a": [1, "x"]}, "Everything.nested['a'][1]: expected int"),
        ("kind", int, "Everything.kind: expected type[Norm], got <class 'int'>"),
        ("kind", Norm.Config(), "Everything.kind: expected type[Norm]"),
        ("function", 3, "Everything.function: expected a callable, got 3 (int)"),
        ("anything", object(), "expected None, bool, int, float, str, Enum, Config"),
        ("anything", {1, 2}, "got {1, 2} (set)"),
        ("norm", RMSNorm, "it is a class; write RMSNorm.Config(...)"),
        ("norm", Everything(), "Everything.norm: expected Norm.Config, got Everything("),
    ],
)
def test_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(FieldTypeError) as caught:
        Everything(**{field: value})
    assert message in str(caught.value)


def _module_level(x: float) -> float:
    return x


def make_closure() -> Any:
    def inner(x: float) -> float:
        return x

    return inner


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda x: x, "it is a lambda"),
        (make_closure(), "it is defined inside a function (a closure)"),
        (functools.partial(math.pow, 2), "it is a functools.partial"),
        (Norm.Config().clone, "it is a bound method"),
        (_module_level, "no public module:attribute"),
    ],
)
def test_unnameable_callables_are_refused_at_assignment(value: Any, reason: str) -> None:
    for field in ("function", "anything"):
        with pytest.raises(FieldTypeError) as caught:
            Everything(**{field: value})
        assert reason in str(caught.value)


def test_a_role_takes_any_implementation() -> None:
    cfg = Everything(norm=RMSNorm.Config(eps=1), norms=[RMSNorm.Config(), Norm.Config()])
    assert type(cfg.norm) is RMSNorm.Config
    assert cfg.norm.eps == 1.0
    assert [type(n) for n in cfg.norms] == [RMSNorm.Config, Norm.Config]


def test_defaults_are_converted_and_checked() -> None:
    assert repr(Everything().rate) == "0.0"

    class Wrong(Config):
        width: int = "wide"  # type: ignore[assignment]

    with pytest.raises(FieldTypeError, match=r"Wrong.width: expected int, got 'wide'"):
        Wrong()


def test_an_annotation_no_config_can_hold() -> None:
    class Odd(Config):
        when: complex = 0

    with pytest.raises(FieldTypeError, match=r"Odd.when: a config can't hold complex; annotate"):
        Odd()

    class Class(Config):
        norm: Norm

    with pytest.raises(FieldTypeError, match=r"did you mean Norm.Config\?"):
        Class(norm=1)
