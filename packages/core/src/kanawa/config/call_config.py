"""config_for: a config for any function or class, with fields from its signature."""

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from kanawa.config.admit import FieldTypeError, Mismatch, admit_any
from kanawa.config.callables import public_name, resolve_callable
from kanawa.config.configurable import Configurable
from kanawa.config.field_types import FieldType
from kanawa.config.origin import Origin
from kanawa.config.record import Config, revive
from kanawa.config.schema import Field, Schema
from kanawa.config.sentinels import CALLEE_DEFAULT, REQUIRED, Sentinel
from kanawa.config.values import copy_value, holds_config, same_value
from kanawa.errors import ConfigError, did_you_mean


class CallableConfig(Config):
    """The config of a callable; `build` calls it."""

    def build(self, **runtime: Any) -> Any:
        """Calls the callable; runtime arguments win, configs among the others are built first."""
        callee, signature = self.callee, _signature(self.callee)
        values = {
            name: value
            for name, value in vars(self).items()
            if not (isinstance(value, Sentinel) and value is not REQUIRED)
        }
        extra = runtime.keys() - self.fields().keys()
        if extra and not _takes_any_name(signature):
            name = min(extra)
            near = did_you_mean(name, self.fields())
            message = f"{public_name(callee)} takes no argument {name!r}{near}"
            raise ConfigError(message)
        values.update(runtime)
        missing = [name for name, value in values.items() if value is REQUIRED]
        if missing:
            message = f"{public_name(callee)} can't be called: {', '.join(missing)} not set"
            raise ConfigError(message)
        for name in values.keys() - runtime.keys():
            values[name] = self._argument(name, values[name])
        positional = [
            values.pop(p.name)
            for p in signature.parameters.values()
            if p.kind is p.POSITIONAL_ONLY and p.name in values
        ]
        return callee(*positional, **values)

    def _argument(self, name: str, value: Any) -> Any:
        # A parameter annotated with a Config class asks for the config itself.
        wants_config = self.fields()[name].type.mentions("config")
        return value if wants_config else _built(value)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (dict(vars(self)), self._origins, self._frozen)
        return _revive_call, (public_name(self.callee), *state)


def _built(value: Any) -> Any:
    """Returns a value with the configs in it built."""
    if isinstance(value, Config):
        return value.build()
    if not holds_config(value):
        return copy_value(value)
    if isinstance(value, dict):
        return {k: _built(v) for k, v in value.items()}
    built = [_built(v) for v in value]
    return tuple(built) if isinstance(value, tuple) else built


class _CallField(Field):
    """A parameter: its annotation is checked as far as a config understands it."""

    __slots__ = ()

    @property
    def type(self) -> FieldType:
        """Returns the parameter's type, widened by nested configs and the parameter's default."""
        return self._resolved()

    def _resolved(self) -> FieldType:
        if self._type is None:
            self._type = self._widened(self._declared())
        return self._type

    def _declared(self) -> FieldType:
        if self.annotation is not inspect.Parameter.empty:
            try:
                return super()._resolved()
            except (FieldTypeError, NameError, TypeError, SyntaxError):
                pass  # A third party's annotation may be anything: then any config value is fine.
        return FieldType(Any, "Any", admit_any)

    def _widened(self, declared: FieldType) -> FieldType:
        default = self.default

        def admit(value: Any, copy: bool) -> Any:
            # A nested config stands for what it builds, whose type is not known yet.
            if holds_config(value) or same_value(value, default):
                return admit_any(value, copy)
            return declared.admit(value, copy)

        return FieldType(declared.annotation, declared.text, admit)


def config_for(callable_: Callable[..., Any], /, **values: Any) -> Any:
    """Returns a config with the callable's parameters as fields.

    Parameters without a default are REQUIRED; set one to FROM_PARENT to give it to `build` instead.
    A Configurable gives its own Config. Raises ConfigError for a callable with *args, one without a
    signature, or one that can't be named (a lambda, closure, partial).
    """
    if isinstance(callable_, type) and issubclass(callable_, Configurable):
        return callable_.Config(**values)
    if not isinstance(callable_, Hashable):
        message = f"config_for({callable_!r}): it is not hashable; wrap it in a function"
        raise ConfigError(message)
    return call_config_class(callable_)(**values)


@functools.lru_cache(maxsize=1024)
def call_config_class(callable_: Any) -> type[CallableConfig]:
    """Returns the config class of a callable, the same one every time."""
    name = public_name(callable_)
    label = f"config_for({name})"
    cls: Any = type(label, (CallableConfig,), {"__module__": __name__})
    cls.callee = _Callee(callable_)
    cls._schema = Schema(_fields(callable_, name, cls), frozenset(), {})
    made: type[CallableConfig] = cls
    return made


class _Callee:
    """Hands out a function without binding it to the config."""

    def __init__(self, callable_: Callable[..., Any]) -> None:
        self._callable = callable_

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        return self._callable


def _fields(callable_: Callable[..., Any], name: str, cls: type) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for parameter in _signature(callable_).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            message = (
                f"config_for({name}): it takes *{parameter.name}, which has no field names; "
                "wrap it in a function with named parameters"
            )
            raise ConfigError(message)
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if hasattr(Config, parameter.name) or parameter.name.startswith("_"):
            if parameter.default is not parameter.empty:
                continue
            message = (
                f"config_for({name}): the parameter {parameter.name!r} can't be a field, configs "
                "use that name themselves; wrap it in a function with other names"
            )
            raise ConfigError(message)
        fields[parameter.name] = _field(callable_, parameter, cls)
    return fields


def _field(callable_: Callable[..., Any], parameter: inspect.Parameter, cls: type) -> Field:
    default = parameter.default
    if default is parameter.empty:
        default = REQUIRED
    else:
        try:
            default = admit_any(default, True)
        except Mismatch:
            default = CALLEE_DEFAULT
    field = _CallField(parameter.name, parameter.annotation, default, cls, _globals(callable_))
    code = getattr(inspect.unwrap(callable_), "__code__", None)
    if code is not None:
        field.line = (code.co_filename, code.co_firstlineno)
    return field


def _globals(callable_: Callable[..., Any]) -> dict[str, Any]:
    function = inspect.unwrap(callable_)
    if isinstance(function, type):
        function = function.__init__  # type: ignore[misc]
    return getattr(function, "__globals__", {})


@functools.lru_cache(maxsize=1024)
def _signature(callable_: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(callable_)
    except (TypeError, ValueError) as error:
        message = (
            f"config_for({public_name(callable_)}): it has no signature to read ({error}); "
            "wrap it in a function with named parameters"
        )
        raise ConfigError(message) from error


def _takes_any_name(signature: inspect.Signature) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def _revive_call(
    name: str, values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], frozen: bool
) -> CallableConfig:
    return revive(call_config_class(resolve_callable(name)), values, origins, frozen)
