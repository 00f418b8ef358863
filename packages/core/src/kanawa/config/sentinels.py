"""Markers for fields that hold no value yet; using one as a value is an error that names it."""

from typing import Any

from kanawa.errors import ConfigError


class SentinelError(ConfigError):
    """A field that holds no value yet was used as if it did."""


class SentinelAttributeError(SentinelError, AttributeError):
    """A field that holds no value yet was asked for something inside."""


class Sentinel:
    """A named marker; it can be compared by identity, printed, copied and pickled, nothing else."""

    __slots__ = ("_advice", "_name")

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._advice = advice

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name

    def __copy__(self) -> "Sentinel":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sentinel":
        return self

    def __getattr__(self, name: str) -> Any:
        # An AttributeError too, so that `hasattr` and `copy` go on as with any object.
        message = f"{self._name} is not a value, nothing is inside ({name} was asked for): {self._advice}"
        raise SentinelAttributeError(message)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        message = f"{self._name} is not a value: {self._advice}"
        raise SentinelError(message)

    __bool__ = __call__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
    __int__ = __float__ = __index__ = __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __divmod__ = __rdivmod__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse


# Typed Any so that `width: int = REQUIRED` passes a type checker.
REQUIRED: Any = Sentinel("REQUIRED", "the user sets this field before the config freezes")
FROM_PARENT: Any = Sentinel("FROM_PARENT", "the parent sets this field when it adds the child")
CALLEE_DEFAULT: Any = Sentinel("CALLEE_DEFAULT", "the callable's own default applies")
ABSENT: Any = Sentinel("ABSENT", "this side of the difference has no such path")

UNSET_BY_NAME = {repr(s): s for s in (REQUIRED, FROM_PARENT, CALLEE_DEFAULT)}
