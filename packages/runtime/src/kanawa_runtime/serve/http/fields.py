"""What a request's JSON may hold: each kind of value checks what came, and says in OpenAPI's words what it takes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from kanawa.errors import did_you_mean

from kanawa_runtime.serve.http.errors import invalid, shown


class Kind(Protocol):
    """A kind of JSON value."""

    def fits(self, value: Any) -> bool:
        """Returns whether a value is of the JSON type that this kind reads."""

    def read(self, value: Any, at: str) -> Any:
        """Returns the checked value; raises the ApiError of the field `at`."""

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema."""

    def named(self) -> str:
        """Returns what a message says was expected."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """true or false."""

    def fits(self, value: Any) -> bool:
        """Returns whether it is one."""
        return isinstance(value, bool)

    def read(self, value: Any, at: str) -> bool:
        """Returns it."""
        return _of_type(self, value, at)

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        return {"type": "boolean"}

    def named(self) -> str:
        """Returns its name."""
        return "true or false"


@dataclasses.dataclass(frozen=True)
class Number:
    """A finite number within [minimum, maximum]; above the minimum where `above`; whole where `whole`."""

    minimum: float | None = None
    maximum: float | None = None
    above: bool = False
    whole: bool = False

    def fits(self, value: Any) -> bool:
        """Returns whether it is one; true and false are none."""
        return isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)

    def read(self, value: Any, at: str) -> Any:
        """Returns it, a float unless whole."""
        _of_type(self, value, at)
        low = self.minimum is not None and (value <= self.minimum if self.above else value < self.minimum)
        high = self.maximum is not None and value > self.maximum
        if low or high or not (self.whole or math.isfinite(value)):
            raise invalid(at, f"{shown(value)} is out of range, expected {self.named()}")
        return value if self.whole else float(value)

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        made: dict[str, Any] = {"type": "integer" if self.whole else "number"}
        if self.minimum is not None:
            made["exclusiveMinimum" if self.above else "minimum"] = self.minimum
        return made if self.maximum is None else made | {"maximum": self.maximum}

    def named(self) -> str:
        """Returns its name and range."""
        word = "a whole number" if self.whole else "a number"
        if self.minimum is None and self.maximum is None:
            return word
        first = "" if self.minimum is None else f" {'above' if self.above else 'from'} {self.minimum}"
        return f"{word}{first}" if self.maximum is None else f"{word}{first} to {self.maximum}"


def Whole(minimum: int | None = None, maximum: int | None = None) -> Number:  # noqa: N802 - reads as a kind
    """Returns the kind of whole numbers in a range."""
    return Number(minimum, maximum, whole=True)


@dataclasses.dataclass(frozen=True)
class Text:
    """A string of at most `longest` characters; one of `choices` where there are any."""

    longest: int = 1_000_000
    choices: tuple[str, ...] = ()
    shortest: int = 0

    def fits(self, value: Any) -> bool:
        """Returns whether it is one."""
        return isinstance(value, str)

    def read(self, value: Any, at: str) -> str:
        """Returns it."""
        _of_type(self, value, at)
        if self.choices and value not in self.choices:
            raise invalid(at, f"there is no {shown(value)}{did_you_mean(value, self.choices)}")
        if not self.shortest <= len(value) <= self.longest:
            least = f"{self.shortest} to " if self.shortest else "at most "
            raise invalid(at, f"it has {len(value):,} characters, expected {least}{self.longest:,}")
        return value

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        made: dict[str, Any] = {"type": "string"}
        if self.choices:
            return made | {"enum": list(self.choices)}
        return made | ({"minLength": self.shortest} if self.shortest else {}) | {"maxLength": self.longest}

    def named(self) -> str:
        """Returns its name."""
        return " or ".join(map(repr, self.choices)) if self.choices else "a string"


@dataclasses.dataclass(frozen=True)
class Listed:
    """A list of `least` to `most` values of one kind."""

    item: Kind
    most: int
    least: int = 0

    def fits(self, value: Any) -> bool:
        """Returns whether it is a list; a list's own kind shows in its first value."""
        return isinstance(value, list) and (not value or self.item.fits(value[0]))

    def read(self, value: Any, at: str) -> list[Any]:
        """Returns the list of checked values."""
        if not isinstance(value, list):
            _of_type(self, value, at)
        if not self.least <= len(value) <= self.most:
            least = f"{self.least:,} to " if self.least else "at most "
            raise invalid(at, f"it has {len(value):,} entries, expected {least}{self.most:,}")
        return [self.item.read(item, f"{at}[{index}]") for index, item in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        return {"type": "array", "items": self.item.schema(), "minItems": self.least, "maxItems": self.most}

    def named(self) -> str:
        """Returns its name."""
        return f"a list ({self.item.named()} each)"


@dataclasses.dataclass(frozen=True)
class Mapped:
    """An object of any names, `most` of them, with values of one kind."""

    item: Kind
    most: int

    def fits(self, value: Any) -> bool:
        """Returns whether it is an object."""
        return isinstance(value, dict)

    def read(self, value: Any, at: str) -> dict[str, Any]:
        """Returns the object with checked values."""
        _of_type(self, value, at)
        if len(value) > self.most:
            raise invalid(at, f"it has {len(value):,} entries, expected at most {self.most:,}")
        return {name: self.item.read(item, f"{at}[{shown(name)}]") for name, item in value.items()}

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        return {"type": "object", "additionalProperties": self.item.schema(), "maxProperties": self.most}

    def named(self) -> str:
        """Returns its name."""
        return f"an object ({self.item.named()} for each name)"


@dataclasses.dataclass(frozen=True)
class Either:
    """A value of one of several kinds, told apart by their JSON types."""

    kinds: tuple[Kind, ...]

    def fits(self, value: Any) -> bool:
        """Returns whether one of the kinds reads it."""
        return any(kind.fits(value) for kind in self.kinds)

    def read(self, value: Any, at: str) -> Any:
        """Returns what the first kind that fits makes of it."""
        for kind in self.kinds:
            if kind.fits(value):
                return kind.read(value, at)
        return _of_type(self, value, at)

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        return {"anyOf": [kind.schema() for kind in self.kinds]}

    def named(self) -> str:
        """Returns its name."""
        return " or ".join(kind.named() for kind in self.kinds)


@dataclasses.dataclass(frozen=True)
class AnyObject:
    """An object that somebody else checks, such as a JSON schema."""

    def fits(self, value: Any) -> bool:
        """Returns whether it is one."""
        return isinstance(value, dict)

    def read(self, value: Any, at: str) -> dict[str, Any]:
        """Returns it as it is."""
        return _of_type(self, value, at)

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        return {"type": "object"}

    def named(self) -> str:
        """Returns its name."""
        return "an object"


@dataclasses.dataclass(frozen=True)
class Field:
    """One name of an object; `refused` says why a value for it is not taken."""

    kind: Kind
    default: Any = None
    required: bool = False
    help: str = ""
    refused: str = ""


@dataclasses.dataclass(frozen=True)
class Shaped:
    """An object with known names; null counts as not given, except where a name has to be there."""

    fields: Mapping[str, Field]
    #: Names of other interfaces' requests that change nothing here and are let pass.
    ignored: Sequence[str] = ()
    open: bool = False
    _type: ClassVar[str] = "object"

    def fits(self, value: Any) -> bool:
        """Returns whether it is an object."""
        return isinstance(value, dict)

    def read(self, value: Any, at: str) -> dict[str, Any]:
        """Returns an object with every name: checked where given, else the default."""
        _of_type(self, value, at)
        inside = f"{at}." if at else ""
        for name in value:
            if name not in self.fields and name not in self.ignored and not self.open:
                place = inside + name[:60]
                raise invalid(place, f"there is no such field{did_you_mean(name, self.fields)}")
        made = {}
        for name, field in self.fields.items():
            given, place = value.get(name), inside + name
            if given is None:
                if field.required:
                    raise invalid(place, f"it is missing, expected {field.kind.named()}")
                made[name] = field.default
                continue
            if field.refused:
                raise invalid(place, field.refused)
            made[name] = field.kind.read(given, place)
        return made | ({name: v for name, v in value.items() if name not in self.fields} if self.open else {})

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        properties = {}
        for name, field in self.fields.items():
            if field.refused:
                continue
            made = field.kind.schema()
            if not field.required:
                made = {"anyOf": [made, {"type": "null"}]}
            properties[name] = made | ({"description": field.help} if field.help else {})
        required = [name for name, field in self.fields.items() if field.required]
        made = {"type": "object", "properties": properties, "additionalProperties": self.open}
        return made | ({"required": required} if required else {})

    def named(self) -> str:
        """Returns its name."""
        return "an object"


_JSON_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}


def _of_type(kind: Kind, value: Any, at: str) -> Any:
    """Returns the value if the kind reads it; raises the error that says what it is instead."""
    if kind.fits(value):
        return value
    name = "null" if value is None else _JSON_NAMES.get(type(value), "an object")
    raise invalid(at, f"expected {kind.named()}, got {name}: {shown(value)}")
