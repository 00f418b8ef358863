"""Calls of tools: which a request allows, the grammar that enforces them, and the calls in a model's output.

Models trained on calls write each between <tool_call> and </tool_call>; as their template says.
Others write bare JSON, which a schema enforces where a call is required.
"""

import dataclasses
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kanawa.errors import did_you_mean

from kanawa_runtime.serve.growing_text import StopStrings
from kanawa_runtime.serve.http.errors import invalid, shown
from kanawa_runtime.serve.http.protocol import ChatRequest, Structure, ToolChoice

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclasses.dataclass(frozen=True)
class Tools:
    """The functions that an answer may call: it must with `required`, only `name` where one is named."""

    functions: Sequence[Mapping[str, Any]]
    required: bool = False
    name: str | None = None
    marked: bool = False
    parallel: bool = True

    @classmethod
    def of(cls, request: ChatRequest, template: str) -> "Tools | None":
        """Returns what a request allows, None where nothing may be called; raises the 400 of a choice that can't be."""
        choice = request.tool_choice
        if not request.tools:
            if choice not in (None, "none", "auto"):
                raise invalid(at="tool_choice", why="a call needs tools, and the request has none")
            return None
        functions = [tool.function.model_dump(exclude_unset=True) for tool in request.tools]
        names = [function["name"] for function in functions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise invalid(at="tools", why=f"two functions are called {twice!r}; give each its own name")
        if choice == "none":
            return None
        name = choice.function.name if isinstance(choice, ToolChoice) else None
        if name is not None and name not in names:
            why = f"there is no tool {shown(name)}{did_you_mean(name, names)}"
            raise invalid(at="tool_choice.function.name", why=why)
        allowed = [function for function in functions if name in (None, function["name"])]
        required = choice == "required" or name is not None
        return cls(allowed, required, name, BEGIN in template, request.parallel_tool_calls)

    def structure(self, special: Sequence[str]) -> Structure | None:
        """Returns the structure of well-formed calls; None where the model may write anything."""
        if self.marked:
            several = self.parallel and self.name is None
            text = tagged_grammar(self.functions, BEGIN, END, required=self.required, parallel=several, special=special)
            return "grammar", text, "tools"
        if not self.required:
            return None
        if self.name is not None:
            schema = self.functions[0].get("parameters") or {"type": "object", "properties": {}}
            return "json_schema", schema, "tools"
        calls = {"type": "array", "items": call_schema(self.functions), "minItems": 1}
        return "json_schema", calls | ({} if self.parallel else {"maxItems": 1}), "tools"


class CallReader:
    """Separates calls from text in an answer as it grows; returns deltas of a message."""

    def __init__(self, tools: Tools | None) -> None:
        """Reads text alone without tools."""
        self._tools = tools
        self.num_calls = 0
        #: What may turn out to be a call: all of it for bare JSON, the text after the mark otherwise.
        self._held = ""
        self._inside = False
        self._whole = tools is not None and tools.required and not tools.marked
        self._begun = False
        self._marks = StopStrings((BEGIN,))

    def push(self, text: str) -> list[dict[str, Any]]:
        """Returns the deltas that became certain."""
        if self._tools is None:
            return [{"content": text}] if text else []
        if self._whole and self._tools.name is not None:
            return self._arguments(self._tools.name, text)
        if not self._begun and not self._whole:
            # Bare JSON is a call only where all of the answer is: its first character decides.
            self._held += text
            start = self._held.lstrip()
            if not start:
                return []
            self._begun, text, self._held = True, self._held, ""
            self._whole = start[0] in "{["
        if self._whole:
            self._held += text
            return []
        return self._marked(text)

    def finish(self) -> list[dict[str, Any]]:
        """Returns what is left."""
        held, self._held = self._held, ""
        if self._inside:
            return [{"content": BEGIN + held}]
        if self._whole and held:
            calls = self._calls_in(held)
            return calls or [{"content": held}]
        rest = held + self._marks.finish()
        return [{"content": rest}] if rest else []

    def _arguments(self, name: str, text: str) -> list[dict[str, Any]]:
        if self.num_calls == 0:
            self.num_calls = 1
            return [_delta(0, name, text)]
        return [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]}] if text else []

    def _marked(self, text: str) -> list[dict[str, Any]]:
        """Returns the deltas of text with calls between marks."""
        deltas: list[dict[str, Any]] = []
        while True:
            if self._inside:
                self._held += text
                inner, mark, after = self._held.partition(END)
                if not mark:
                    return deltas
                calls = self._calls_in(inner)
                deltas += calls or [{"content": BEGIN + inner + END}]
                self._inside, self._held, text = False, "", after
                # Between calls, and before the first of several, is only a line end.
                text = text.lstrip("\n") if calls else text
                self._marks = StopStrings((BEGIN,))
            plain = self._marks.push(text)
            if plain.strip() or (plain and not self.num_calls and self._marks.hit is None):
                deltas.append({"content": plain})
            if self._marks.hit is None:
                return deltas
            self._inside, text = True, self._marks.rest

    def _calls_in(self, text: str) -> list[dict[str, Any]]:
        """Returns the deltas of calls that a JSON text holds; none where it is no call of a known function."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return []
        listed = content if isinstance(content, list) else [content]
        tools = self._tools
        names = {function["name"] for function in tools.functions} if tools else set()
        made: list[dict[str, Any]] = []
        for call in listed:
            name = call.get("name") if isinstance(call, dict) else None
            arguments = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
            # A model may write anything there, and a list is in no set.
            if not isinstance(name, str) or name not in names or not isinstance(arguments, dict | str):
                return []
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            made.append(_delta(self.num_calls + len(made), name, text))
        self.num_calls += len(made)
        return made


def message_of(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the whole message that deltas add up to."""
    content = "".join(delta.get("content", "") for delta in deltas)
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({name: value for name, value in call.items() if name != "index"})
            else:
                function = calls[call["index"]]["function"]
                function["arguments"] += call["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


def _delta(index: int, name: str, arguments: str) -> dict[str, Any]:
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def call_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the schema of `{"name": …, "arguments": {…}}`, a call of one of the functions."""
    return {"anyOf": [_call(function) for function in functions]}


def tagged_grammar(
    functions: Sequence[Mapping[str, Any]],
    begin: str,
    end: str,
    *,
    required: bool,
    parallel: bool = True,
    special: Collection[str] = (),
) -> str:
    """Returns the Lark grammar of calls between a model's marks, such as <tool_call> and </tool_call>.

    `special` are the names of the tokenizer's special tokens: a mark among them is that token, else it is text.
    `required` asks for one call at least, and no text; without, a text may stand before each call and after the last,
    and be all there is. `parallel` allows several calls.
    """
    opening, closing = (mark if mark in special else json.dumps(mark) for mark in (begin, end))
    body = f"BLANK %json {json.dumps(call_schema(functions))} BLANK {closing}"
    rules = ["BLANK: /[ \\n]{0,2}/"]
    if required:
        rules += [f"start: call{' (BLANK call)*' if parallel else ''}", f"call: {opening} {body}"]
    else:
        rules += [f"start: call{'*' if parallel else '?'} TEXT", "TEXT: /(.|\\n)*/"]
        # A mark that is text ends the text before it at its first occurrence: hence lazy.
        rules += (
            [f"call: TEXT {opening} {body}"]
            if begin in special
            else [f"call: opened {body}", f"opened[lazy]: TEXT {opening}"]
        )
    return "\n".join(rules) + "\n"


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    # Without parameters OpenAI means a function that takes none.
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": empty if parameters is None else parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
