"""What all models of requests share: unknown fields are rejected with suggestions, errors have OpenAI's shape."""

import dataclasses
from typing import Annotated, Any, ClassVar

import numpy as np
from kanawa.errors import did_you_mean
from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError, core_schema

from kanawa_runtime.serve.http.errors import ApiError, invalid, shown

_MAX_NAME_CHARACTERS = 60
#: Marks a member of a union in the path of an error, where clients look for fields alone.
_TAG = "("

#: The code of a prompt that is too long.
TOO_LONG = "context_length_exceeded"

Name = Annotated[str, Field(max_length=256)]


class Fields(BaseModel):
    """An object with known names; null counts as absent. `IGNORED` names are dropped, `REFUSED` ones rejected."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    IGNORED: ClassVar[frozenset[str]] = frozenset()
    REFUSED: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            error, text = "not_an_object", "Input should be an object"
            raise PydanticCustomError(error, text)
        names = {field.alias or name for name, field in cls.model_fields.items()}
        known = {}
        for name, content in value.items():
            if name in names:
                if content is not None:
                    known[name] = content
            elif name in cls.REFUSED:
                if content is not None:
                    raise wrong_field(at=name, why=cls.REFUSED[name])
            elif name not in cls.IGNORED:
                near = did_you_mean(name, names)
                raise wrong_field(at=name[:_MAX_NAME_CHARACTERS], why=f"there is no such field{near}")
        return known


@dataclasses.dataclass(frozen=True)
class Length:
    """Bounds a text's characters; pydantic's own bounds refuse half a surrogate pair, which JSON may hold."""

    longest: int
    shortest: int = 1

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Checks the bounds after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Returns the bounds in the words of JSON schemas."""
        return {**handler(schema), "minLength": self.shortest, "maxLength": self.longest}

    def _check(self, text: str) -> str:
        if not self.shortest <= len(text) <= self.longest:
            error = "text_length"
            says = f"it has {len(text):,} characters, expected {self.shortest} to {self.longest:,}"
            raise PydanticCustomError(error, "{says}", {"says": says})
        return text


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """A list of token ids: its length is checked first, and all ids in one pass. Pydantic would look at each in turn.

    A prompt that truncate_prompt_tokens cuts, a field before it, is cut to `longest` before its ids are checked. An
    array of integers, as `large_requests` makes of long lists, stays one.
    """

    vocab_size: int
    longest: int
    shortest: int = 0
    is_prompt: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Takes the place of pydantic's own schema."""
        return core_schema.with_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Returns the bounds in the words of JSON schemas."""
        items = {"type": "integer", "minimum": 0, "maximum": self.vocab_size - 1}
        bounds = {} if self.is_prompt else {"maxItems": self.longest}
        return {"type": "array", "items": items, "minItems": self.shortest, **bounds}

    def _check(self, value: Any, info: core_schema.ValidationInfo) -> list[int] | np.ndarray:
        if not isinstance(value, list | np.ndarray):
            error, text = "list_type", "Input should be a valid list"
            raise PydanticCustomError(error, text)
        start = 0
        if len(value) > self.longest:
            if not self.is_prompt:
                raise wrong_field(at="", why=f"List should have at most {self.longest:,} items, not {len(value):,}")
            if info.data.get("truncate_prompt_tokens") is None:
                error = TOO_LONG
                says = too_long_prompt(f"{len(value):,} tokens", self.longest)
                raise PydanticCustomError(error, "{says}", {"says": says})
            start = len(value) - self.longest
        elif len(value) < self.shortest:
            raise wrong_field(at="", why=f"List should have at least {self.shortest} item, not {len(value)}")
        ids: list[int] | np.ndarray = value[start:]
        if isinstance(ids, np.ndarray):
            in_range = (ids >= 0) & (ids < self.vocab_size)
            if in_range.all():
                return ids
            place = int(in_range.argmin())
            raise wrong_field(start + place, self._complaint(int(ids[place])))
        if set(map(type, ids)) <= {int} and (not ids or 0 <= min(ids) <= max(ids) < self.vocab_size):
            return ids
        place = next(i for i, token in enumerate(ids) if type(token) is not int or not 0 <= token < self.vocab_size)
        raise wrong_field(start + place, self._complaint(ids[place]))

    def _complaint(self, token: Any) -> str:
        if type(token) is not int:
            expected = "a valid integer"
        else:
            expected = "greater than or equal to 0" if token < 0 else f"less than or equal to {self.vocab_size - 1}"
        return f"Input should be {expected}, got {shown(token)}"


def too_long_prompt(has: str, longest: int) -> str:
    """Returns what a prompt that is too long is told."""
    return (
        f"it has {has}, and prompt and answer together may have {longest:,} tokens; shorten it, or let "
        "truncate_prompt_tokens cut it"
    )


def by_type(expected: str) -> Discriminator:
    """Returns the discriminator of a union by JSON types: tags (text), (list) and (object)."""
    tags: dict[type, str] = {str: "(text)", list: "(list)", np.ndarray: "(list)", dict: "(object)"}
    text = f"Input should be {expected}"
    return Discriminator(lambda value: tags.get(type(value)), custom_error_type="kind", custom_error_message=text)


def wrong_field(at: str | int, why: str) -> PydanticCustomError:
    """Returns the error of a field that a validator of the whole object finds."""
    error = "wrong_field"
    return PydanticCustomError(error, "{why}", {"field": at, "why": why})


def bad_request(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """Returns the 400 of the first field that doesn't fit: its path, what it should be, and its value."""
    first = error.errors(include_url=False)[0]
    own = first["ctx"]["field"] if first["type"] == "wrong_field" else ""
    parts = [*first["loc"], *([] if own == "" else [own])]
    place = ""
    for part in parts:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not part.startswith(_TAG):
            place += f".{part}" if place else part
    why = first["msg"]
    if first["type"] == "missing":
        expected = model.model_fields[place].description if place in model.model_fields else None
        why = f"it is missing, expected {expected}" if expected else "it is missing"
    elif first["type"] not in ("wrong_field", "text_length", TOO_LONG):
        why += f", got {shown(first['input'])}"
    return invalid(place, why, TOO_LONG if first["type"] == TOO_LONG else None)
