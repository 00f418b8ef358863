"""The repr of a config is the call that makes it."""

import enum
import math
from collections.abc import Callable
from typing import Any

import kanawa as kn
import pytest
from kanawa.config import Config
from kanawa.config import config_for as config_for
from kanawa.errors import ConfigError


class Colour(enum.Enum):
    """Two of them."""

    RED = 1
    BLUE = 2


class Inner(Config):
    """A nested record."""

    width: int = 4
    rate: float = 0.5


class Outer(Config):
    """A field of every kind."""

    name: str = "a"
    size: int = kn.REQUIRED
    inner: Inner = Inner(width=2)
    maybe: Inner | None = None
    several: tuple[Inner, ...] = ()
    listed: list[Any] = []
    table: dict[str, Any] = {}
    colour: Colour = Colour.RED
    function: Callable[..., Any] = math.exp


def scaled(x: float, factor: float = 1.0) -> float:
    """Returns a product."""
    return x * factor


@pytest.mark.parametrize(
    "text",
    [
        "Outer()",
        "Outer(size=3)",
        "Outer(inner=Inner())",
        "Outer(inner=Inner(width=2, rate=0.1), maybe=Inner())",
        "Outer(several=(Inner(),))",
        "Outer(several=(Inner(), Inner(width=1)), listed=[1, None, 'x'], table={'a': (1.5, True)})",
        "Outer(name='it\\'s \"so\"', colour=Colour.BLUE, function=math.sin)",
        "Outer(table={'nan': float('nan'), 'low': float('-inf')})",
        "config_for(scaled, factor=2.0)",
    ],
)
def test_repr_makes_an_equal_config_and_leaves_out_defaults(text: str) -> None:
    made = eval(text)  # the text is above
    shown = repr(made)
    again = eval(shown.replace(f"{__name__}.scaled", "scaled"))  # what repr wrote
    assert again == made
    if "name=" not in text:
        assert shown.replace(f"{__name__}.scaled", "scaled") == text


def test_a_long_config_has_a_line_for_each_field() -> None:
    long = Outer(name="n" * 60, size=3, maybe=Inner(rate=0.25), several=(Inner(), Inner(width=8)))
    assert repr(long) == (
        f"Outer(\n    name='{'n' * 60}',\n    size=3,\n    maybe=Inner(rate=0.25),\n"
        "    several=(Inner(), Inner(width=8)),\n)"
    )
    assert eval(repr(long)) == long  # what repr wrote


def test_a_config_in_an_error_stays_on_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        Outer(size=Outer(name="n" * 120))
    assert "\n" not in str(caught.value).splitlines()[0]
    assert len(str(caught.value).splitlines()) == 1
