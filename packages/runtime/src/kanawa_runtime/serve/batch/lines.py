"""One line of a file of prompts, as a request to the engine."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from kanawa.errors import UsageError, did_you_mean

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.request import Request, SamplingParams

#: What a line may say of its sampling, with the kinds of JSON numbers that it takes.
_SAMPLING: Mapping[str, tuple[type, ...]] = {
    "max_tokens": (int,),
    "min_tokens": (int,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "min_p": (int, float),
    "seed": (int,),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "repetition_penalty": (int, float),
}
_FIELDS = ("id", "prompt", "prompt_ids", *_SAMPLING)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line's number (from 1), its own id, and its request."""

    number: int
    name: Any
    request: Request


def read_line(number: int, text: str, defaults: SamplingParams, tokenizer: Tokenizer | None) -> Line:
    """Returns the line; raises UsageError that says what is wrong with it.

    Without a `seed` of its own, a line uses the default's and its number: its output doesn't depend on other lines.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"no JSON: {error}"
        raise UsageError(message) from None
    if not isinstance(record, dict):
        message = f"expected an object with prompt or prompt_ids, got {type(record).__name__}"
        raise UsageError(message)
    for key in record:
        if key not in _FIELDS:
            message = f"no field {key!r}{did_you_mean(key, _FIELDS)}; there are {', '.join(_FIELDS)}"
            raise UsageError(message)
    ids = _ids(record, tokenizer)
    fields = {name: record[name] for name in _SAMPLING if record.get(name) is not None}
    for name, value in fields.items():
        if type(value) not in _SAMPLING[name]:
            expected = "a whole number" if float not in _SAMPLING[name] else "a number"
            message = f"{name} is {value!r}, expected {expected}"
            raise UsageError(message)
    fields.setdefault("seed", (defaults.seed or 0) * 2**32 + number)
    sampling = dataclasses.replace(defaults, **fields)
    return Line(number, record.get("id"), Request(id=str(number), prompt_ids=tuple(ids), sampling=sampling))


def _ids(record: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[int]:
    text, ids = record.get("prompt"), record.get("prompt_ids")
    if (text is None) == (ids is None):
        message = "expected either prompt, a text, or prompt_ids, a list of token ids"
        raise UsageError(message)
    if ids is not None:
        if not (isinstance(ids, list) and ids and all(type(token) is int for token in ids)):
            message = "prompt_ids: expected a list of at least one whole number"
            raise UsageError(message)
        return ids
    if not isinstance(text, str):
        message = f"prompt is {type(text).__name__}, expected a text"
        raise UsageError(message)
    if tokenizer is None:
        message = "the run has no tokenizer, so that a prompt has to be prompt_ids, a list of token ids"
        raise UsageError(message)
    encoded = tokenizer.encode(text).tolist()
    return [*tokenizer.prefix_ids, *encoded] if encoded else [tokenizer.bos_id]
