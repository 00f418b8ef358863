"""Calls in what a model writes: whatever it is, it's a call of a known function or text, never an error."""

import pytest
from kanawa_runtime.serve.http.tool_calls import CallReader, Tools, message_of

TOOLS = Tools([{"name": "look", "parameters": None}], marked=True)


NAMES = {"list": '["look"]', "object": '{"look": 1}', "null": "null", "number": "1", "other": '"other"', "flag": "true"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("form", ['{{"name": {}, "arguments": {{}}}}', '<tool_call>{{"name": {}}}</tool_call>'])
def test_a_name_that_is_none_makes_text(name, form):
    text, reader = form.format(name), CallReader(TOOLS)
    message = message_of([*reader.push(text), *reader.finish()])
    assert message["content"] == text and "tool_calls" not in message
