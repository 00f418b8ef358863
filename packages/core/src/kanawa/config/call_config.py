"""config_for: a config for any function or class, with fields from its signature."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

from kanawa.config.callables import public_name, resolve_callable
from kanawa.config.configurable import Configurable
from kanawa.config.field_types import ANYTHING, FieldType, FieldTypeError, Mismatch, admit_any
from kanawa.config.origin import Origin
from kanawa.config.record import Config, revive
from kanawa.config.schema import Field, Schema
from kanawa.config.sentinels import CALLEE_DEFAULT, FROM_PARENT, REQUIRED, Sentinel
from kanawa.config.values import copy_value, holds_config, same_value
from kanawa.errors import ConfigError, did_you_mean


class CallableConfig(Config):
    """The config of a callable; `build` calls it."""

    def build(self, **runtime: Any) -> Any:
        """Calls the callable; runtime arguments win, configs among the others are built first.

        A runtime argument also reaches the configs inside, where they have FROM_PARENT under its name.
        """
        callee, signature = self.callee, _signature(self.callee)
        values = {name: value for name, value in vars(self).items() if not _callee_decides(signature, name, value)}
        below = {name: value for name, value in runtime.items() if name in _left_to_parent(self)}
        extra = runtime.keys() - self.fields().keys() - below.keys()
        if extra and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            name = min(extra)
            near = did_you_mean(name, self.fields())
            message = f"{public_name(callee)} takes no argument {name!r}{near}"
            raise ConfigError(message)
        values.update({name: value for name, value in runtime.items() if name in self.fields() or name in extra})
        missing = [name for name, value in values.items() if isinstance(value, Sentinel)]
        if missing:
            message = f"{public_name(callee)} can't be called: {', '.join(missing)} not set"
            raise ConfigError(message)
        for name in values.keys() - runtime.keys():
            # A parameter annotated with a Config class asks for the config itself.
            if not self.fields()[name].type.mentions("config"):
                values[name] = _built(values[name], below)
        return callee(*_positional(signature, values), **values)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (dict(vars(self)), self._origins, self._frozen)
        return _revive_call, (public_name(self.callee), *state)


def _built(value: Any, below: dict[str, Any]) -> Any:
    """Returns a value with the configs in it built; `below` are the arguments that those may take from here."""
    if isinstance(value, CallableConfig):
        wanted = {*_left_to_parent(value), *(n for n, v in vars(value).items() if v is FROM_PARENT)}
        return value.build(**{name: below[name] for name in below if name in wanted})
    if isinstance(value, Config):
        return value.build()
    if not holds_config(value):
        return copy_value(value)
    if isinstance(value, dict):
        return {k: _built(v, below) for k, v in value.items()}
    built = [_built(v, below) for v in value]
    return tuple(built) if isinstance(value, tuple) else built


def _left_to_parent(cfg: CallableConfig) -> set[str]:
    """Returns the parameters that callables inside, not `cfg` itself, take from `build`."""
    inside = (node for path, node in cfg.walk() if path and isinstance(node, CallableConfig))
    return {name for node in inside for name, value in vars(node).items() if value is FROM_PARENT}


def _callee_decides(signature: inspect.Signature, name: str, value: Any) -> bool:
    """Returns whether an unset parameter is left to the callable's own default."""
    has_default = signature.parameters[name].default is not inspect.Parameter.empty
    return isinstance(value, Sentinel) and value is not REQUIRED and (value is not FROM_PARENT or has_default)


def _positional(signature: inspect.Signature, values: dict[str, Any]) -> list[Any]:
    """Removes from `values`, and returns, the positional arguments: all before *args, where there are any."""
    several = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    rest = () if several is None else values.pop(several, ())
    positional = []
    for parameter in signature.parameters.values():
        in_front = bool(rest) and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        set_by_position = parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in values
        if in_front or set_by_position:
            positional.append(values.pop(parameter.name, parameter.default))
    return [*positional, *rest]


class _CallField(Field):
    """A parameter: its annotation is checked as far as a config understands it."""

    __slots__ = ()

    def _resolved(self) -> FieldType:
        """Returns the parameter's type, widened by nested configs and the parameter's default."""
        if self._type is not None:
            return self._type
        declared, default = ANYTHING, self.default
        if self.annotation is not inspect.Parameter.empty:
            # A third party's annotation may be anything: then any config value is fine.
            with contextlib.suppress(FieldTypeError, NameError, TypeError, SyntaxError):
                declared = super()._resolved()

        def admit(value: Any, copy: bool) -> Any:
            # A nested config is replaced by what it builds, whose type is not known yet.
            if holds_config(value) or same_value(value, default):
                return admit_any(value, copy)
            return declared.admit(value, copy)

        self._type = FieldType(declared.annotation, declared.text, admit)
        return self._type


def config_for(callable_: Callable[..., Any], /, *args: Any, **values: Any) -> Any:
    """Returns a config with the callable's parameters as fields; `args` and `values` set them as a call would.

    Arguments may be configs, which are built first: `config_for(optax.chain, config_for(optax.clip, 1.0), …)`; what a
    callable takes as *args is a tuple in one field. Parameters without a default are REQUIRED; one set to FROM_PARENT
    is given to `build` instead.
    Of a Configurable: its Config. Raises ConfigError for one without a signature, or one that can't be named (a
    lambda, closure, partial), and for arguments that a call would refuse.
    """
    if isinstance(callable_, type) and issubclass(callable_, Configurable):
        if args:
            message = f"config_for({callable_.__qualname__}): fields have names; write name=value"
            raise ConfigError(message)
        return callable_.Config(**values)
    if not isinstance(callable_, Hashable):
        message = f"config_for({callable_!r}): it is not hashable; wrap it in a function"
        raise ConfigError(message)
    cls = call_config_class(callable_)
    return cls(**_by_name(callable_, args, values), **values)


def _by_name(callable_: Callable[..., Any], args: tuple[Any, ...], values: dict[str, Any]) -> dict[str, Any]:
    """Returns positional arguments by the names of the parameters they are for."""
    named: dict[str, Any] = {}
    left = list(args)
    for parameter in _signature(callable_).parameters.values():
        if not left:
            break
        if parameter.kind is parameter.VAR_POSITIONAL:
            named[parameter.name], left = tuple(left), []
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named[parameter.name] = left.pop(0)
    name = public_name(callable_)
    if left:
        message = f"config_for({name}): it takes {len(args) - len(left)} positional arguments, {len(args)} were given"
        raise ConfigError(message)
    twice = sorted(named.keys() & values.keys())
    if twice:
        message = f"config_for({name}): {', '.join(twice)} is given by position and by name"
        raise ConfigError(message)
    return named


@functools.lru_cache(maxsize=1024)
def call_config_class(callable_: Any) -> type[CallableConfig]:
    """Returns the config class of a callable, the same one every time."""
    name = public_name(callable_)
    label = f"config_for({name})"
    cls: Any = type(label, (CallableConfig,), {"__module__": __name__})
    cls.callee = staticmethod(callable_)  # not bound to the config
    cls._schema = Schema(_fields(callable_, name, cls), frozenset(), {})
    made: type[CallableConfig] = cls
    return made


def _fields(callable_: Callable[..., Any], name: str, cls: type) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for parameter in _signature(callable_).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            each = Any if parameter.annotation is parameter.empty else parameter.annotation
            several: Any = f"tuple[{each}, ...]" if isinstance(each, str) else tuple[each, ...]  # type: ignore[valid-type]
            parameter = parameter.replace(annotation=several, kind=parameter.KEYWORD_ONLY, default=())
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
            # No config can hold it (an object, a function without a name); the callable still has it.
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
        if isinstance(callable_, type) and type(callable_).__call__ is not type.__call__:
            # A metaclass that makes instances itself, as Flax NNX's does, hides what __init__ takes.
            signature = inspect.signature(callable_.__init__)  # type: ignore[misc]
            return signature.replace(parameters=list(signature.parameters.values())[1:])
        return inspect.signature(callable_)
    except (TypeError, ValueError) as error:
        message = (
            f"config_for({public_name(callable_)}): it has no signature to read ({error}); "
            "wrap it in a function with named parameters"
        )
        raise ConfigError(message) from error


def _revive_call(
    name: str, values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], frozen: bool
) -> CallableConfig:
    return revive(call_config_class(resolve_callable(name)), values, origins, frozen)
