"""config_for: fields from a signature, runtime arguments, nested building."""

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kanawa.config import (
    FROM_PARENT,
    REQUIRED,
    Config,
    Configurable,
    FieldTypeError,
    IncompleteConfigError,
    UnknownFieldError,
    config_for,
    from_json,
    to_json,
    to_text,
)
from kanawa.errors import ConfigError

Schedule = Callable[[int], float]


def adam(
    learning_rate: "float | Schedule",
    b1: float = 0.9,
    *,
    mask: Any = None,
    nesterov: bool = False,
    get: int = 3,
    key: Any = object(),  # noqa: B008
    odd: "NoSuchName" = 1,  # type: ignore[name-defined]  # noqa: F821
) -> dict[str, Any]:
    return {
        "learning_rate": learning_rate,
        "b1": b1,
        "mask": mask,
        "nesterov": nesterov,
        "odd": odd,
    }


def constant(value: float) -> str:
    return f"constant {value}"


def join(schedules: Sequence[Schedule], boundaries: Sequence[int] = ()) -> tuple:
    return tuple(schedules), tuple(boundaries)


class Service:
    def __init__(self, path: str, /, retries: int = 3, **options: Any) -> None:
        self.path, self.retries, self.options = path, retries, options


class Record(Config):
    x: int = 1


def describe(record: Record, other: Any = None) -> Any:
    return record, other


def test_fields_come_from_the_signature() -> None:
    cfg = config_for(adam, learning_rate=0.1)
    assert list(cfg.fields()) == ["learning_rate", "b1", "mask", "nesterov", "key", "odd"]
    assert config_for(adam).learning_rate is REQUIRED
    assert cfg.set(b1=1).build() == {
        "learning_rate": 0.1, "b1": 1.0, "mask": None, "nesterov": False, "odd": 1
    }  # fmt: skip


def test_unknown_and_mistyped_arguments() -> None:
    with pytest.raises(UnknownFieldError, match=r"has no field 'learning_rat'; did you mean 'learning"):
        config_for(adam, learning_rat=1)
    with pytest.raises(FieldTypeError, match=r"b1: expected float, got 'x'"):
        config_for(adam, b1="x")
    config_for(adam, odd="anything goes where the annotation can't be read")


def test_nested_configs_are_built() -> None:
    cfg = config_for(adam, learning_rate=config_for(constant, value=2))
    assert cfg.build()["learning_rate"] == "constant 2.0"
    joined = config_for(join, schedules=[config_for(constant, value=v) for v in (1, 2)])
    assert joined.build() == (("constant 1.0", "constant 2.0"), ())


def test_a_parameter_that_wants_the_config_gets_it() -> None:
    record, built = config_for(describe, record=Record(x=2), other=config_for(constant, value=1)).build()
    assert record == Record(x=2)
    assert built == "constant 1.0"


def test_runtime_arguments_win() -> None:
    cfg = config_for(adam, learning_rate=FROM_PARENT, b1=0.5).freeze()
    assert cfg.build(learning_rate=3, b1=0.1)["b1"] == 0.1
    assert config_for(adam).build(learning_rate=3)["learning_rate"] == 3
    with pytest.raises(ConfigError, match="test_call_config:adam takes no argument 'masks'; did you"):
        cfg.build(masks=1)


def test_missing_arguments() -> None:
    with pytest.raises(ConfigError, match="constant can't be called: value not set"):
        config_for(constant).build()
    with pytest.raises(IncompleteConfigError, match="value is REQUIRED and not set"):
        config_for(constant).freeze()


def test_classes_positional_and_keyword_parameters() -> None:
    cfg = config_for(Service, path="p")
    service = cfg.build(extra=1)
    assert (service.path, service.retries, service.options) == ("p", 3, {"extra": 1})
    with pytest.raises(UnknownFieldError, match=r"has no field 'retry'; did you mean 'retries'"):
        config_for(Service, path="p", retry=1)


class Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.finished = True
        return made


class Made(metaclass=Meta):
    def __init__(self, width: int, depth: int = 2) -> None:
        self.width, self.depth = width, depth


def test_a_class_whose_metaclass_hides_the_signature() -> None:
    assert list(config_for(Made, 3).fields()) == ["width", "depth"]
    made = config_for(Made, 3).build()
    assert (made.width, made.depth, made.finished) == (3, 2, True)


def stars(*parts: int) -> tuple[int, ...]:
    return parts


def mixed(first: int, second: int = 2, /, third: Any = 3, *rest: "int | str", last: Any = None) -> tuple[Any, ...]:
    return first, second, third, rest, last


def chain(*transforms: Schedule) -> tuple[Any, ...]:
    return transforms


def scaled(by: float, rate: float = 1.0) -> tuple[float, float]:
    return by, rate


def test_positional_arguments_are_those_of_the_call() -> None:
    assert config_for(scaled, 2.0).build() == (2.0, 1.0)
    cfg = config_for(mixed, 1, 5, 6, 7, "x", last=8)
    assert (cfg.first, cfg.second, cfg.third, cfg.rest, cfg.last) == (1, 5, 6, (7, "x"), 8)
    assert cfg.build() == (1, 5, 6, (7, "x"), 8)
    assert config_for(mixed, 1).build() == (1, 2, 3, (), None)
    assert config_for(mixed, 1).set(rest=(9,)).build() == (1, 2, 3, (9,), None)
    assert config_for(stars).build() == ()


def test_configs_among_positional_arguments_are_built() -> None:
    cfg = config_for(chain, config_for(scaled, 1.0), config_for(chain, config_for(scaled, 3.0, rate=4.0)))
    assert cfg.build() == ((1.0, 1.0), ((3.0, 4.0),))
    cfg.set_path("transforms[1].transforms[0].by", 5.0)
    assert cfg.build() == ((1.0, 1.0), ((5.0, 4.0),))
    for same in (pickle.loads(pickle.dumps(cfg)), copy.deepcopy(cfg), from_json(to_json(cfg))):
        assert same == cfg
        assert same.build() == cfg.build()
    assert f"transforms[0]: {__name__}:scaled\ntransforms[0].by: 1.0" in to_text(cfg)


def test_a_runtime_argument_reaches_every_config_that_leaves_it_open() -> None:
    inner = config_for(chain, config_for(scaled, 2.0, rate=FROM_PARENT))
    cfg = config_for(chain, config_for(scaled, 1.0, rate=FROM_PARENT), inner, config_for(scaled, 3.0))
    assert cfg.build(rate=0.5) == ((1.0, 0.5), ((2.0, 0.5),), (3.0, 1.0))
    assert cfg.build() == ((1.0, 1.0), ((2.0, 1.0),), (3.0, 1.0)), "they have defaults of their own"
    with pytest.raises(ConfigError, match="scaled can't be called: by not set"):
        config_for(chain, config_for(scaled, FROM_PARENT)).build()
    with pytest.raises(ConfigError, match="chain takes no argument 'rat'"):
        cfg.build(rat=0.5)


@pytest.mark.parametrize(
    ("arguments", "values", "message"),
    [
        ((1.0, 2.0, 3.0), {}, "scaled.*: it takes 2 positional arguments, 3 were given"),
        ((1.0,), {"by": 2.0}, "scaled.*: by is given by position and by name"),
    ],
)
def test_arguments_that_a_call_would_refuse(arguments: Any, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_for(scaled, *arguments, **values)
    with pytest.raises(ConfigError, match="fields have names; write name=value"):
        config_for(Configurable, 1)
    with pytest.raises(FieldTypeError, match=r"parts\[1\]: expected int .*, got 'x'"):
        config_for(stars, 1, "x")


def taken(walk: int) -> None: ...


@pytest.mark.parametrize(
    ("callable_", "message"),
    [
        (taken, r"the parameter 'walk' can't be a field"),
        (dict.fromkeys(["a"]).get, "a built-in method|no public|no signature|can't"),
        (lambda x: x, "it is a lambda"),
    ],
)
def test_callables_that_cannot_be_configured(callable_: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_for(callable_)


def test_same_callable_same_class() -> None:
    assert type(config_for(constant)) is type(config_for(constant))
    assert config_for(constant, value=1) == config_for(constant, value=1)
    assert config_for(constant, value=1) != config_for(math.sqrt)


def test_a_configurable_gives_its_own_config() -> None:
    assert type(config_for(Configurable)) is Configurable.Config


def test_round_trips() -> None:
    cfg = config_for(adam, learning_rate=config_for(constant, value=2), mask=("a",))
    for same in (pickle.loads(pickle.dumps(cfg)), copy.deepcopy(cfg), from_json(to_json(cfg))):
        assert same == cfg
        assert same.origin_history("mask")[-1].value == "('a',)"
    assert to_json(cfg)["$call"] == f"{__name__}:adam"
    assert to_text(cfg).splitlines()[0] == f".: {__name__}:adam"
    assert f"learning_rate: {__name__}:constant\nlearning_rate.value: 2.0\n" in to_text(cfg)
    assert "key: CALLEE_DEFAULT" in to_text(cfg)
