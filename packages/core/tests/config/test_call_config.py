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


def stars(*parts: int) -> None: ...


def taken(walk: int) -> None: ...


@pytest.mark.parametrize(
    ("callable_", "message"),
    [
        (stars, r"it takes \*parts, which has no field names; wrap it"),
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
