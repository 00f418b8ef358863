"""What all models of requests share: unknown fields are rejected with suggestions, errors have OpenAI's shape."""

import dataclasses
from typing import Annotated, Any, ClassVar

from kanawa.errors import did_you_mean
from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError, core_schema

from kanawa_runtime.serve.http.errors import ApiError, invalid, shown

_MAX_NAME_CHARACTERS = 60
#: Marks a member of a union in the path of an error, where clients look for fields alone.
_TAG = "("

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


def by_type(expected: str) -> Discriminator:
    """Returns the discriminator of a union by JSON types: tags (text), (list) and (object)."""
    tags: dict[type, str] = {str: "(text)", list: "(list)", dict: "(object)"}
    text = f"Input should be {expected}"
    return Discriminator(lambda value: tags.get(type(value)), custom_error_type="kind", custom_error_message=text)


def wrong_field(at: str, why: str) -> PydanticCustomError:
    """Returns the error of a field that a validator of the whole object finds."""
    error = "wrong_field"
    return PydanticCustomError(error, "{why}", {"field": at, "why": why})


def bad_request(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """Returns the 400 of the first field that doesn't fit: its path, what it should be, and its value."""
    first = error.errors(include_url=False)[0]
    parts = [*first["loc"], *([first["ctx"]["field"]] if first["type"] == "wrong_field" else [])]
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
    elif first["type"] not in ("wrong_field", "text_length"):
        why += f", got {shown(first['input'])}"
    return invalid(place, why)
