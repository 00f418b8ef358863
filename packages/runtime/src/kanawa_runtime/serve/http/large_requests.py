"""Long bodies and texts in a process of its own: reading JSON holds Python's interpreter, and so all other requests.

Run as a module it is such a process.
"""

import functools
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from kanawa.config import from_json, to_json
from pydantic import BaseModel, ValidationError

from kanawa_runtime.child_process import ChildProcesses, answer_messages, next_message
from kanawa_runtime.serve.engine.request import EngineLimits
from kanawa_runtime.serve.http.bodies import LIMITED, limited_request
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.errors import ApiError, invalid
from kanawa_runtime.serve.http.exchange import MOST_PARTS, body_json
from kanawa_runtime.serve.http.tokens import TokenTexts
from kanawa_runtime.serve.http.validation import Fields, bad_request

#: Bytes of a body, characters of a text and ids of a list from which on they are worth a message to another process.
LARGE = 2**18
_SECONDS = 60.0
_MOST_MEMORY_BYTES = 4 * 2**30
_MOST_ANSWER_BYTES = 2**30
#: Engine and event loop go before it where cores are short.
_NICENESS = 5
#: Fields of requests that hold token ids, or lists of them.
_OF_TOKENS = ("prompt", "tokens", "allowed_token_ids", "stop_token_ids")

Body = TypeVar("Body", bound=BaseModel)


class LargeRequests:
    """Reads bodies of a server's requests, encodes and decodes; every method waits, in a worker's thread."""

    def __init__(self, texts: TokenTexts, limits: EngineLimits, config: ServerConfig) -> None:
        def start() -> bytes:
            tokenizer = texts.tokenizer
            read = to_json(tokenizer.config), tokenizer.state(), dict(texts.special)
            return pickle.dumps((*read, texts.max_length, limits, to_json(config)))

        self._processes = ChildProcesses(__name__, start)

    def reads(self, body: type[BaseModel]) -> bool:
        """Returns whether bodies of a kind are read here: those with a server's own limits."""
        return _kind(body) is not None

    def read(self, body: type[Body], content: bytes) -> Body:
        """Returns a request, its token ids as int32 arrays; raises the ApiError of one that doesn't fit."""
        return body.model_validate(self._ask("read", _kind(body), content))

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32."""
        ids: np.ndarray = self._ask("encode", text)
        return ids

    def tokenized(self, text: str, *, prefix: bool, with_texts: bool) -> bytes:
        """As `TokenTexts`."""
        answer: bytes = self._ask("tokenized", text, prefix, with_texts)
        return answer

    def detokenized(self, ids: np.ndarray) -> bytes:
        """As `TokenTexts`."""
        answer: bytes = self._ask("detokenized", ids)
        return answer

    def close(self) -> None:
        """Ends the processes that have nothing to do."""
        self._processes.close()

    def _ask(self, *asked: Any) -> Any:
        message = pickle.dumps(asked, protocol=5)
        try:
            answer = self._processes.ask(message, seconds=_SECONDS, most_bytes=_MOST_ANSWER_BYTES)
        except (OSError, EOFError) as error:
            limits = f"{_SECONDS:g} s or {_MOST_MEMORY_BYTES // 2**20:,} MiB of memory"
            raise invalid(at="", why=f"the request took more than {limits} to read; send less at once") from error
        made = pickle.loads(answer)
        if isinstance(made, _Refusal):
            raise made.error()
        return made


class _Refusal:
    """An ApiError on its way: exceptions with named arguments can't be pickled."""

    def __init__(self, error: ApiError) -> None:
        self._message, self._status = str(error), error.status
        self._param, self._code, self._headers = error.param, error.code, error.headers

    def error(self) -> ApiError:
        """Returns the error."""
        return ApiError(self._status, self._message, param=self._param, code=self._code, headers=self._headers)


def _kind(body: type[BaseModel]) -> str | None:
    return next((kind.__name__ for kind in LIMITED if issubclass(body, kind)), None)


def read_fields(body: type[Fields], content: bytes) -> dict[str, Any]:
    """Returns the known fields of a body that fits, token ids as int32 arrays; raises the ApiError of any other.

    What they hold besides is bounded, so that little is left to do where they are used.
    """
    found = body_json(content)
    try:
        request = body.model_validate(found)
    except ValidationError as error:
        raise bad_request(error, body) from error
    fields = {name: found[name] for name in request.model_fields_set}
    fields |= {name: _as_array(getattr(request, name)) for name in _OF_TOKENS if name in fields}
    if _holds_more([value for value in fields.values() if not isinstance(value, np.ndarray)], MOST_PARTS):
        raise invalid(
            at="", why=f"the body holds more than {MOST_PARTS:,} values besides token ids; send fewer at once"
        )
    return fields


def _as_array(value: Any) -> Any:
    if isinstance(value, list) and value:
        if isinstance(value[0], int):
            return np.asarray(value, np.int32)
        return [_as_array(one) for one in value]
    return value


def _holds_more(values: list[Any], most: int) -> bool:
    """Returns whether lists and objects hold more than so many values, arrays counted as one each."""
    count = 0
    while values:
        value = values.pop()
        held = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        count += len(held)
        if count > most:
            return True
        values.extend(held)
    return False


def main() -> None:
    """Reads, encodes and decodes until the input ends."""
    start = next_message(sys.stdin.buffer)
    if start is None:
        return
    os.nice(_NICENESS)
    tokenizer_config, tokenizer_state, special, max_length, limits, server_config = pickle.loads(start)
    config: Any = from_json(server_config)

    @functools.cache
    def body(kind: str) -> type[Fields]:
        return limited_request(kind, limits, config)

    @functools.cache
    def texts() -> TokenTexts:
        return TokenTexts(from_json(tokenizer_config).build(state=tokenizer_state), special, max_length)

    answers: dict[str, Callable[..., Any]] = {
        "read": lambda kind, content: read_fields(body(kind), content),
        "encode": lambda text: np.asarray(texts().tokenizer.encode(text), np.int32),
        "tokenized": lambda text, prefix, with_texts: texts().tokenized(text, prefix=prefix, with_texts=with_texts),
        "detokenized": lambda ids: texts().detokenized(ids),
    }

    def answer(message: bytes) -> bytes:
        name, *arguments = pickle.loads(message)
        try:
            made = answers[name](*arguments)
        except ApiError as error:
            made = _Refusal(error)
        return pickle.dumps(made, protocol=5)

    answer_messages(answer, _MOST_MEMORY_BYTES)


if __name__ == "__main__":
    # Under its own name: what it answers is pickled, and the other side knows no __main__.
    from kanawa_runtime.serve.http import large_requests

    large_requests.main()
