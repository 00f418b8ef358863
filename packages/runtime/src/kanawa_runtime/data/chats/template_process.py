"""Chat templates in processes of their own, which may be killed: a template is a stranger's program.

Run as a module it is such a process: it renders what comes on its input until that ends.
"""

import datetime
import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kanawa_runtime.child_process import ChildProcesses, answer_messages

#: The longest text of a template; the request itself is limited before.
MAX_CHARACTERS = 64 * 2**20
_MAX_MEMORY_BYTES = 2**30
_MAX_ANSWER_BYTES = 12 * MAX_CHARACTERS


class TemplateError(Exception):
    """A template can't be read, or doesn't take what it got; or it took too long or too much memory."""


class MarkedText(NamedTuple):
    """A rendered text, and the ranges [begin, end) of its characters between `{% generation %}` and its end."""

    text: str
    spans: tuple[tuple[int, int], ...]


class TemplateProcesses:
    """Renders in as many processes as threads ask at once."""

    def __init__(self) -> None:
        self._processes = ChildProcesses(__name__)

    def render(self, source: str, variables: Mapping[str, Any] | None, *, seconds: float) -> str:
        """Returns a template's text; "" without variables, where it is only read. Raises TemplateError."""
        return str(self._answers(source, [variables], seconds)[0]["text"])

    def render_marked(
        self, source: str, variables: Sequence[Mapping[str, Any]], *, seconds: float, day: str
    ) -> list[MarkedText]:
        """Returns the texts for each of `variables`, with what the template marks as generated.

        `day` (YYYY-MM-DD) is the template's today: what is trained on must not depend on when. Raises TemplateError.
        """
        answers = self._answers(source, variables, seconds, day)
        return [MarkedText(answer["text"], tuple((begin, end) for begin, end in answer["spans"])) for answer in answers]

    def _answers(
        self, source: str, variables: Sequence[Mapping[str, Any] | None], seconds: float, day: str | None = None
    ) -> list[Any]:
        asked = json.dumps({"source": source, "variables": list(variables), "day": day}).encode()
        try:
            content = self._processes.ask(asked, seconds=seconds, most_bytes=_MAX_ANSWER_BYTES)
        except (OSError, EOFError) as error:
            limit = f"{seconds:g} s or {_MAX_MEMORY_BYTES // 2**20:,} MiB of memory"
            message = f"it took more than {limit}, and was ended"
            raise TemplateError(message) from error
        answers: list[Any] = json.loads(content)
        for answer in answers:
            if "error" in answer:
                raise TemplateError(answer["error"])
        return answers

    def close(self) -> None:
        """Ends the processes that render nothing."""
        self._processes.close()


class _RefusedError(Exception):
    """A template called raise_exception."""


class _Renderer:
    """One environment of templates. With `marks`, what is between generation marks is framed by two texts of chance."""

    def __init__(self, marks: bool) -> None:
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # A text of chance, so that no message and no template can hold it.
        name = secrets.token_hex(8)
        self._begin, self._end = (f"\ue000{name}\ue001", f"\ue002{name}\ue001") if marks else ("", "")

        def framed(body: list[Any]) -> list[Any]:
            if not marks:
                return body
            begin, end = (nodes.Output([nodes.TemplateData(mark)]) for mark in (self._begin, self._end))
            return [begin, *body, end]

        class Generation(Extension):
            """`{% generation %}`: what is inside is the model's own words, which training has to know."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                # What is set inside is unknown after it, as where the mark is written by transformers.
                return nodes.Scope(framed(body), lineno=line)

        extensions = [loopcontrols, Generation]
        self._jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._jinja.filters["tojson"] = _to_json
        self._jinja.globals["raise_exception"] = _refuse
        self._compiled = functools.lru_cache(maxsize=4)(self._jinja.from_string)

    def text(self, source: str, variables: Mapping[str, Any] | None, day: str | None) -> str:
        """Returns the text with its frames; raises whatever the template does."""
        template = self._compiled(source)
        today = datetime.datetime.now() if day is None else datetime.datetime.fromisoformat(day)
        pieces, length = [], 0
        names = None if variables is None else {"strftime_now": today.strftime, **variables}
        for piece in template.generate(**names) if names is not None else ():
            pieces.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                message = f"it makes more than {MAX_CHARACTERS:,} characters"
                raise _RefusedError(message)
        return "".join(pieces)

    def marked(self, text: str) -> MarkedText:
        """Returns a text without its frames, and where they were; inner marks are part of the outer one."""
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        length, depth, begin, at = 0, 0, 0, 0
        while True:
            places = [(text.find(mark, at), mark) for mark in (self._begin, self._end)]
            found = [place for place in places if place[0] >= 0]
            place, mark = min(found, default=(len(text), ""))
            pieces.append(text[at:place])
            length += place - at
            if not mark:
                return MarkedText("".join(pieces), tuple(spans))
            at = place + len(mark)
            if mark == self._begin:
                begin = begin if depth else length
                depth += 1
            else:
                depth -= 1
                if not depth and length > begin:
                    spans.append((begin, length))


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    separators, sort_keys = options.get("separators"), bool(options.get("sort_keys"))
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise _RefusedError(str(message))


def _rendered(
    plain: _Renderer, framed: _Renderer, source: str, variables: Mapping[str, Any] | None, day: str | None
) -> dict[str, Any]:
    try:
        text = plain.text(source, variables, day)
        if day is None:
            return {"text": text}
        marked = framed.marked(framed.text(source, variables, day))
    except _RefusedError as error:
        return {"error": str(error)[:500]}
    except Exception as error:  # An unknown program ran on unknown messages: anything may be raised.
        line = f", line {error.lineno}" if hasattr(error, "lineno") else ""
        return {"error": f"{type(error).__name__}: {error}"[:500] + line}
    if marked.text != text:
        return {"error": "what it marks with {% generation %} is changed afterwards, so its place is unknown"}
    return {"text": text, "spans": marked.spans}


def main() -> None:
    """Renders templates until the input ends."""
    plain, framed = _Renderer(marks=False), _Renderer(marks=True)

    def answer(asked: bytes) -> bytes:
        content = json.loads(asked)
        source, day = content["source"], content["day"]
        made = [_rendered(plain, framed, source, variables, day) for variables in content["variables"]]
        return json.dumps(made).encode()

    answer_messages(answer, _MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
