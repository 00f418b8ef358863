"""Requests made by hand to hurt a server: bodies that are JSON or nearly, and bytes that are HTTP or nearly."""

import json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HALF = "\ud800"
#: Names that grammars, templates and JSON might take for something of their own.
ODD_NAMES = [
    '"',
    "\\",
    "\n",
    "}",
    "%lark",
    "/a/",
    "<tool_call>",
    "名前",
    "\u202e",
    "\x00",
    HALF,
    "a" * 256,
    "{{ 7*7 }}",
]
MESSAGES = [{"role": "user", "content": "a"}]


def prompted(**more):
    return COMPLETIONS, {"prompt": "ab", "max_tokens": 3, **more}


def chatted(**more):
    return CHAT, {"messages": MESSAGES, "max_tokens": 3, **more}


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def deep(levels, inside="1"):
    """Returns the text of a list in a list in a list."""
    return "[" * levels + inside + "]" * levels


def nested_schema(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def by_schema(schema):
    return prompted(structured_outputs={"json": schema})


#: (path, body): what a client may send by mistake or on purpose.
BODIES = [
    *(prompted(n=n) for n in (0, -1, 10**9, 1.0, "1", True, 10**400)),
    *(prompted(temperature=t) for t in (-1, 1e308, -0.0, "NaN", [], 5e-324)),
    *(prompted(repetition_penalty=p, frequency_penalty=-2) for p in (0, 5e-324, 1e-40, 0.01, 100)),
    *(prompted(max_tokens=m) for m in (-1, 0, 2**31, 2**63, 1e3)),
    *(prompted(seed=s) for s in (-(2**63), 2**63 - 1, 2**63, 1.5)),
    *(prompted(**{name: -1}) for name in ("top_k", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "min_p")),
    *(prompted(prompt=p) for p in ("", [], [""], [[]], [-1], [2**31], [320], [1.0], [None], ["a", [1]], [[1], "a"])),
    *(prompted(prompt=p) for p in (HALF, "\x00", "\ufeff", "\u202e", "e" + "\u0301" * 400, [True], {"a": 1}, None)),
    *(prompted(model=m) for m in ("模型", HALF, "", "../x", "a" * 256, "a" * 257, "scripted\x00", 5)),
    *(prompted(stop=s) for s in ([], [""], ["a"] * 17, ["a"] * 100_000, "a" * 1001, [HALF], {"a": 1}, [["a"]])),
    *(prompted(bad_words=w) for w in (["a" * 1000] * 256, [" "] * 256, ["a"] * 257, [HALF], ["\x00"])),
    *(prompted(stop_token_ids=i) for i in ([-1], [2**40], [1] * 65, list(range(64)))),
    *(prompted(logit_bias=b) for b in ({str(i): 1 for i in range(1025)}, {str(i): 100 for i in range(320)})),
    *(prompted(logit_bias=b)
      for b in ({"-1": 1}, {"1e3": 1}, {"٣": 1}, {"9" * 50: 1}, {"": 1}, {"1": None}, {"1": "a"})),
    prompted(logit_bias={str(i): -100 for i in range(320)}),
    *(prompted(allowed_token_ids=i) for i in ([0] * 320, [319], list(range(320)), [-1], [320])),
    prompted(allowed_token_ids=[5], logit_bias={"5": -100}, bad_words=["\x05"]),
    *(prompted(structured_outputs={"regex": r}) for r in ("a" * 60_000, "a{100000000}", "(a{1000}){1000}", "((" * 500)),
    *(prompted(structured_outputs={"regex": r})
      for r in ("(a|a)*b" * 100, "(.*a){50}", "(?<=a)b", "\\p{L}{999}", HALF)),
    *(prompted(structured_outputs={"regex": r}) for r in ("(" * 5000 + ")" * 5000, "[^\\x00-\\x{10FFFF}]", "a**", "")),
    *(prompted(structured_outputs={"choice": c})
      for c in ([""], ["a" * 10_000] * 100, [HALF], ["\x00"], [], ["a"] * 1001)),
    *(prompted(structured_outputs={"grammar": g}) for g in ("start: start", "start: a\na: start", "start: /(/", "%")),
    prompted(structured_outputs={"grammar": 'start: "a" start start start | ""'}),
    prompted(structured_outputs={"grammar": "start: " + "| ".join('"a"' for _ in range(10_000))}),
    by_schema({"$ref": "#"}),
    by_schema({"$ref": "http://localhost:1/schema.json"}),
    by_schema({"$ref": "file:///etc/passwd"}),
    by_schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    by_schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    by_schema({"enum": [f"value {i}" for i in range(5000)]}),
    by_schema({"type": "array", "minItems": 10**9}),
    by_schema({"type": "string", "minLength": 10**9, "maxLength": 1}),
    by_schema({"type": "string", "pattern": "(a+)+$"}),
    by_schema({"type": "integer", "minimum": 10**300, "multipleOf": 0.1}),
    by_schema({"allOf": [{"anyOf": [{"type": "object"}] * 30}] * 30}),
    by_schema({"type": "object", "properties": {HALF: {"type": "string"}}, "required": [HALF]}),
    by_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}),
    by_schema({"type": ["integer", "nothing", 5]}),
    by_schema({}),
    *(by_schema(nested_schema(levels)) for levels in (10, 30)),
    by_schema("{" * 1000),
    prompted(structured_outputs={"json": {}, "regex": "a"}),
    prompted(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}),
    *(chatted(tools=[tool(name)], tool_choice="required") for name in ODD_NAMES),
    *(chatted(tools=[tool(name)], tool_choice=tool(name)) for name in ODD_NAMES),
    *(chatted(tools=[tool("f", {"type": "object", "properties": {n: {}}})], tool_choice="required") for n in ODD_NAMES),
    chatted(tools=[tool(f"f{i}") for i in range(128)], tool_choice="required"),
    chatted(tools=[tool(f"f{i}") for i in range(129)]),
    chatted(tools=[tool("f"), tool("f")]),
    chatted(tools=[tool("f", {"$ref": "#"})], tool_choice="required"),
    chatted(tools=[tool("f", {"type": "string"})], tool_choice="required"),
    chatted(tool_choice="required"),
    *(chatted(messages=m) for m in ([], [{}], [5], [{"role": "user"}], [{"role": "root", "content": "a"}], "a", {})),
    *(chatted(messages=[{"role": "user", "content": c}])
      for c in ("", HALF, "{{ 7*7 }}{% raise %}", "\x00", [], [{}], 5)),
    chatted(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
    chatted(messages=MESSAGES * 1024),
    chatted(messages=MESSAGES * 1025),
    chatted(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep(5000)}}]}]),
    chatted(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "9" * 5000}}]}]),
    chatted(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "NaN"}}]}]),
    chatted(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "5"}}]}]),
    chatted(chat_template_kwargs={"messages": 5, "add_generation_prompt": 7, "raise_exception": 1, HALF: HALF}),
    chatted(top_logprobs=5),
    chatted(logprobs=5),
    chatted(max_tokens=None, max_completion_tokens=0),
    ("/tokenize", {"prompt": "a" * 1_000_001}),
    ("/tokenize", {"prompt": HALF * 100_000}),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
    ("/detokenize", {"tokens": [319] * 100_000}),
    ("/detokenize", {"tokens": [-1]}),
    ("/detokenize", {"tokens": [2**64]}),
    ("/load", {"step": 1}),
]  # fmt: skip

#: Bodies that are no JSON, or oddly written.
TEXTS = [
    *(deep(levels).encode() for levels in (50, 99, 101, 900, 960, 990, 5000, 1_000_000)),
    *(b'{"prompt":"a","max_tokens":%s}' % n
      for n in (b"NaN", b"-Infinity", b"1e999", b"9" * 4300, b"9" * 4301, b"01", b"0x1")),
    *(b'{"prompt":"a","temperature":%s}' % n for n in (b"NaN", b"Infinity", b"-1e-999", b"1e-999", b"1" + b"0" * 400)),
    b'{"prompt":"a","prompt":5,"prompt":"b","max_tokens":1}',
    b'{"prompt":"\xff\xfe"}',
    b'{"prompt":"\xed\xa0\x80"}',
    b'{"prompt":"\\ud800","max_tokens":1}',
    b'\xef\xbb\xbf{"prompt":"a","max_tokens":1}',
    '{"prompt":"a","max_tokens":1}'.encode("utf-16"),
    '{"prompt":"a","max_tokens":1}'.encode("utf-32"),
    b'{"prompt":"a\nb"}',
    b'{"prompt":"a",}',
    b'{"prompt":"a"} {}',
    b"null",
    b"true",
    b'"prompt"',
    b" " * 1_000_000,
    b"[" + b"[]," * 700_000 + b"[]]",
    b'{"prompt":"a","metadata":' + deep(95).encode() + b"}",
    b'{"' + b"a" * 100_000 + b'":1}',
    b"{" + b",".join(b'"%d":1' % i for i in range(50_000)) + b"}",
]  # fmt: skip


def http(first=b"POST /v1/completions HTTP/1.1", *headers, body=b'{"prompt":"ab","max_tokens":2}', length=None):
    """Returns the bytes of a request."""
    lines = [first, b"Host: localhost", b"Content-Type: application/json", *headers]
    if length is None:
        length = len(body)
    if length >= 0:
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


POST, CHUNKED = b"POST /v1/completions HTTP/1.1", b"Transfer-Encoding: chunked"
#: Bytes that are nearly HTTP; each gets an answer below 500, or its connection closed.
RAW = [
    http(b"POST /v1/completions HTTP/1.0"),
    http(b"POST /v1/completions HTTP/1.0", body=b'{"prompt":"ab","max_tokens":2,"stream":true}'),
    http(b"POST /v1/completions HTTP/2.0"),
    http(b"POST /v1/completions HTTP/9.9"),
    http(b"POST /v1/completions"),
    b"GET /health HTTP/1.0\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET  /health  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\nHost: localhost\n\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"TRACE /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET //health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models/%00%ff%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models/..%2f..%2fetc HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: [::1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: 1\r\n" * 9000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n a: folded\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + b"\x00" * 100,
    http(POST, b"Content-Length: 5"),
    http(POST, CHUNKED),
    http(POST, b"Transfer-Encoding: gzip, chunked"),
    http(POST, b"Content-Encoding: gzip"),
    http(POST, b"Content-Type: text/plain"),
    http(POST, b"Expect: 100-continue"),
    http(POST, b"Authorization: Bearer \xff\xfe"),
    http(POST, length=-1, body=b""),
    http(POST, length=99_999_999_999_999_999_999),
    http(POST, length=9_000_000, body=b"{"),
    http(POST, CHUNKED, length=-1, body=b"1e\r\n" + b'{"prompt":"ab","max_tokens":2}' + b"\r\n0\r\n\r\n"),
    http(POST, CHUNKED, length=-1, body=b"fffffffffffffffff\r\n{"),
    http(POST, CHUNKED, length=-1, body=b"-1\r\n{"),
    http(POST, CHUNKED, length=-1, body=b"1\r\n{\r\n" * 100),
    http(POST, CHUNKED, length=-1, body=b"1;" + b"x" * 100_000 + b"\r\n{\r\n"),
    http() * 3,
    http(b"POST /nothing HTTP/1.1") * 3,
    http() + b"\x00\xff" * 50,
    b"\r\n" * 10_000,
    b"\x00" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"A" * 100_000,
]  # fmt: skip


def written(body):
    """Returns a body as clients in C send it: half a surrogate pair has no UTF-8."""
    return json.dumps(body)
