"""Compiles definitions of structured outputs, once for all requests with the same one."""

import dataclasses
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from kanawa.errors import UsageError, did_you_mean

from kanawa_runtime.serve.engine.request import RequestError
from kanawa_runtime.serve.structured.vocabulary import library, llguidance_tokenizer

if TYPE_CHECKING:
    import llguidance

    from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class MatchError(UsageError):
    """A structured output that can't continue: its grammar exceeded its limits, or doesn't allow a token."""


@dataclasses.dataclass(eq=False)
class LibraryGrammar:
    """Follows one request through a grammar; implements `serve.engine.request.Grammar`."""

    matcher: "llguidance.LLMatcher"
    vocab_size: int

    def allowed(self) -> np.ndarray:
        """Returns which ids may follow, packed as int32 [ceil(vocab / 32)]; stop ids where the output may end.

        Raises MatchError where that takes more than the bounds on a step.
        """
        # A failed matcher would allow every stop token: half an output would pass for a whole one.
        self._check()
        bits = self.matcher.compute_bitmask()
        self._check()
        return np.frombuffer(bits, np.int32)[: -(-self.vocab_size // 32)]

    def accept(self, token_id: int) -> bool:
        """Takes a token; returns whether the output is complete, so that nothing but a stop token may follow.

        Raises MatchError for one that isn't allowed.
        """
        self.matcher.consume_token(token_id)
        self._check()
        return bool(self.matcher.is_stopped())

    def fork(self) -> "LibraryGrammar":
        """Returns an independent copy."""
        return LibraryGrammar(self.matcher.deep_copy(), self.vocab_size)

    def _check(self) -> None:
        if self.matcher.is_error():
            # What follows the first line is the library's state, for its authors.
            reason = self.matcher.get_error().partition("\n")[0]
            message = f"the structured output can't continue: {reason}"
            raise MatchError(message)


GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]

#: A definition beyond it is refused: what compiles it can't be interrupted, and a large one takes seconds.
MAX_BYTES = 64 * 1024
MAX_CHOICES = 2048
#: Size of the cache of compiled definitions.
_MAX_CACHED = 128
#: Blanks between the parts of a JSON text: endless ones are what small models fall into.
_BLANKS = r"[\x20\x0A\x0D\x09]{1,32}"


class Grammars:
    """Compiles definitions for one tokenizer and one model's vocabulary; every method may be called from any thread."""

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, stop_ids: tuple[int, ...] | None = None) -> None:
        """`stop_ids` end an output; None: the tokenizer's own. Raises UsageError without llguidance, or a stop id."""
        self._vocab_size = vocab_size
        self._words = llguidance_tokenizer(tokenizer, vocab_size, tokenizer.stop_ids if stop_ids is None else stop_ids)
        self._cache: OrderedDict[tuple[str, str], llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, kind: GrammarKind, spec: Any = None, *, field: str | None = None) -> LibraryGrammar:
        """Returns a grammar at its start, for one request.

        `spec` is a schema (an object or its text) for `json_schema`, nothing for `json_object`, an expression for
        `regex` (the whole output matches), a list of strings for `choice`, the text of a Lark or GBNF grammar for
        `grammar`. Raises RequestError of `field` (by default structured_outputs.KIND) for what can't be compiled.
        """
        field = field or f"structured_outputs.{kind}"
        if kind not in _DEFINITIONS:
            near = did_you_mean(kind, _DEFINITIONS)
            message = f"structured output {kind!r} is none of {', '.join(get_args(GrammarKind))}{near}"
            raise RequestError(message, field)
        text = _DEFINITIONS[kind](spec, field)
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_BYTES:
            message = f"{field} is {size} bytes long, the limit is {MAX_BYTES}; give a smaller one"
            raise RequestError(message, field)
        if kind != "choice" and any("\ud800" <= c <= "\udfff" for c in text):
            message = f"{field} holds half of a character (a lone surrogate), which no text can"
            raise RequestError(message, field)
        with self._lock:
            cached = self._cache.get((kind, text))
            if cached is not None:
                self._cache.move_to_end((kind, text))
                return LibraryGrammar(cached.deep_copy(), self._vocab_size)
        # Outside of the lock, as it may take a second: two that compile the same at once both succeed.
        made = self._compiled(kind, text, field)
        with self._lock:
            self._cache[kind, text] = made
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
            return LibraryGrammar(made.deep_copy(), self._vocab_size)

    def _compiled(self, kind: GrammarKind, text: str, field: str) -> "llguidance.LLMatcher":
        matchers = library().LLMatcher
        try:
            if kind in ("json_schema", "json_object"):
                source = matchers.grammar_from_json_schema(text, overrides={"whitespace_pattern": _BLANKS})
            elif kind == "regex":
                source = matchers.grammar_from_regex(text)
            else:
                source = library().grammar_from("choice" if kind == "choice" else "grammar", text)
        except ValueError as error:
            raise RequestError(_refused(field, str(error)), field) from error
        made: llguidance.LLMatcher = matchers(self._words, source, log_level=0)
        # The library reports, and never raises; some of what is wrong shows only when the first mask is made.
        tried = made.deep_copy()
        if not made.is_error():
            tried.compute_bitmask()
        for one in (made, tried):
            if one.is_error():
                raise RequestError(_refused(field, one.get_error()), field)
        return made


def _refused(field: str, reason: str) -> str:
    # Its first lines say what and where; the library's state comes after them.
    lines = [line.strip() for line in reason.partition("<state>")[0].splitlines() if line.strip()]
    return f"{field} can't be compiled: {' '.join(lines)[:400]}"


def _schema(spec: Any, field: str) -> str:
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except (ValueError, RecursionError) as error:
            message = f"{field} is a text, but no JSON: {error}"
            raise RequestError(message, field) from error
    if not isinstance(spec, (Mapping, bool)):
        message = f"{field} is {_kind_of(spec)}, expected a JSON schema: an object, or the text of one"
        raise RequestError(message, field)
    try:
        # Not sorted: the order of properties is the order they are written in.
        return json.dumps(spec)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{field} is no JSON: {error}"
        raise RequestError(message, field) from error


def _any_object(spec: Any, field: str) -> str:
    del spec, field
    return '{"type": "object"}'


def _text(spec: Any, field: str) -> str:
    if not isinstance(spec, str) or not spec:
        message = f"{field} is {_kind_of(spec)}, expected a text that isn't empty"
        raise RequestError(message, field)
    return spec


def _choices(spec: Any, field: str) -> str:
    choices = list(spec) if isinstance(spec, (list, tuple)) else []
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        message = f"{field} is {_kind_of(spec)}, expected a list of texts, at least one and none of them empty"
        raise RequestError(message, field)
    if len(choices) > MAX_CHOICES:
        message = f"{field} has {len(choices)} texts, the limit is {MAX_CHOICES}"
        raise RequestError(message, field)
    return json.dumps(choices)


def _kind_of(spec: Any) -> str:
    if spec is None or (isinstance(spec, (str, list, tuple)) and not spec):
        return "empty"
    return f"{type(spec).__name__} {str(spec)[:40]!r}"


_DEFINITIONS: dict[str, Callable[[Any, str], str]] = {
    "json_schema": _schema,
    "json_object": _any_object,
    "regex": _text,
    "choice": _choices,
    "grammar": _text,
}
