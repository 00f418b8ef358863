"""Structured output: whatever is drawn under the masks is what was asked for, with tokenizers of every kind."""

import json
import random
import re
import sys
import threading

import jsonschema
import numpy as np
import pytest
from kanawa.errors import UsageError
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.serve.engine.request import RequestError
from kanawa_runtime.serve.http.tool_calls import call_schema, tagged_grammar
from kanawa_runtime.serve.structured import grammars as module
from kanawa_runtime.serve.structured.grammars import Grammars, MatchError

from ...data.tokenizers.library_tokenizers import TEXT, byte_level, sentence_pieces, write_folder

SCHEMAS = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 200},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["a", 'b"', "日本", None, 3]}, "minItems": 1, "maxItems": 3},
            "inner": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        },
        "required": ["tags", "inner"],
        "additionalProperties": False,
    },
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/tree"}},
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "any_of": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{2,5}$"}, {"const": {"k": [1, 2]}}]},
    "formats": {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1, "maxItems": 2},
    "text": {"type": "string", "minLength": 1, "maxLength": 9},
}


def tokenizer_of(kind, folder):
    if kind == "bytes":
        return ByteTokenizer.Config().build()
    if kind == "bpe":
        return BytePairTokenizer.Config(vocab_size=500, min_piece_count=1).build().fit([t.encode() for t in TEXT])
    make, end = {"byte_level": (byte_level, "<|end|>"), "sentence_pieces": (sentence_pieces, "</s>")}[kind]
    return load_tokenizer(write_folder(folder, make(), {"eos_token": end}))


KINDS = ("bytes", "bpe", "byte_level", "sentence_pieces")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {kind: tokenizer_of(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def made(tokenizers):
    # A model's vocabulary is padded, here to no multiple of 32.
    return {kind: Grammars(t, t.vocab_size + 21) for kind, t in tokenizers.items()}


def ids_of(mask, vocab_size):
    assert mask.dtype == np.int32
    assert mask.shape == (-(-vocab_size // 32),)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[vocab_size:].any()
    return np.nonzero(bits)[0]


def walk(grammar, tokenizer, rng, *, most=600):
    """Returns the ids of a random output: any allowed token at first, and later the ends of what is open."""
    stops, ids = set(tokenizer.stop_ids), []
    closing = [i for i, token in enumerate(tokenizer.tokens) if token in (b'"', b"}", b"]", b":", b"e", b"1", b"0")]
    while True:
        allowed = ids_of(grammar.allowed(), grammar.vocab_size).tolist()
        assert allowed
        assert all(i < tokenizer.vocab_size and tokenizer.known[i] for i in allowed)
        # Nothing special but a stop: a mask that let a begin token through would end up in the text.
        assert not set(allowed) & set(tokenizer.special_names) - stops
        if len(ids) > most or stops & set(allowed):
            assert stops & set(allowed), f"no end within {most} tokens: {tokenizer.decode(ids)!r}"
            return ids
        near = [i for i in closing if i in set(allowed)] if len(ids) > 40 else []
        ids.append(rng.choice(near or allowed))
        if grammar.accept(ids[-1]):
            assert set(ids_of(grammar.allowed(), grammar.vocab_size)) <= stops
            return ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_random_walk_under_the_mask_gives_json_of_the_schema(made, tokenizers, kind, name):
    schema, tokenizer = SCHEMAS[name], tokenizers[kind]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in range(6):
        grammar = made[kind].compile("json_schema", schema)
        ids = walk(grammar, tokenizer, random.Random(seed))
        text = b"".join(tokenizer.tokens[i] for i in ids).decode()
        validator.validate(json.loads(text))


@pytest.mark.parametrize("kind", KINDS)
def test_expressions_choices_grammars_and_any_object(made, tokenizers, kind):
    tokenizer, compile_ = tokenizers[kind], made[kind].compile
    arithmetic = 'root ::= number (("+" | "*") number)?\nnumber ::= [0-9] [0-9]?\n'
    lark = 'start: NAME ("," NAME)~0..2\nNAME: /[a-z]{1,3}/\n'
    choices = ["yes", "no", 'ja\n"', "日本"]
    for seed in range(8):
        rng = random.Random(seed)

        def drawn(grammar, rng=rng):
            return b"".join(tokenizer.tokens[i] for i in walk(grammar, tokenizer, rng)).decode()

        assert re.fullmatch(r"[a-z]{2,4}-[0-9]{2}", drawn(compile_("regex", r"[a-z]{2,4}-[0-9]{2}")))
        assert drawn(compile_("choice", choices)) in choices
        assert re.fullmatch(r"\d\d?([+*]\d\d?)?", drawn(compile_("grammar", arithmetic)))
        assert re.fullmatch(r"[a-z]{1,3}(,[a-z]{1,3}){0,2}", drawn(compile_("grammar", lark)))
        assert isinstance(json.loads(drawn(compile_("json_object"))), dict)


def test_a_stop_is_allowed_where_the_output_may_end_and_accept_says_where_it_must(made):
    grammar, stop = made["bytes"].compile("regex", "[a-z]{2,3}"), ByteTokenizer.eos_id
    ended = []
    for letter in b"abc":
        assert (stop in ids_of(grammar.allowed(), grammar.vocab_size)) == (letter == ord("c"))
        ended.append(grammar.accept(letter))
    assert ended == [False, False, True]
    assert ids_of(grammar.allowed(), grammar.vocab_size).tolist() == [stop]


def test_a_fork_runs_ahead_alone(made):
    grammar = made["bytes"].compile("choice", ["abc", "abd"])
    grammar.accept(ord("a"))
    ahead = grammar.fork()
    assert ahead.accept(ord("b")) is False
    assert ahead.accept(ord("d")) is True
    assert ids_of(grammar.allowed(), grammar.vocab_size).tolist() == [ord("b")]
    with pytest.raises(MatchError, match="can't continue"):
        grammar.accept(ord("x"))
    # Half an output must not pass for a whole one: the library would allow every stop token now.
    with pytest.raises(MatchError, match="can't continue"):
        grammar.allowed()


WRONG = [
    ("json_schema", {"type": "obj"}, "Invalid type: obj"),
    ("json_schema", '{"type": ', "no JSON"),
    ("json_schema", [1], r"list '\[1\]', expected a JSON schema"),
    ("json_schema", {"type": "string", "pattern": "("}, "unclosed group"),
    ("json_schema", {"$ref": "https://example.com/x"}, "https://example.com/x"),
    ("json_schema", {"if": {"type": "null"}}, r'Unimplemented keys: \["if"\]'),
    ("json_schema", {"not": float("nan")}, "can't be compiled"),
    ("json_schema", "[" * 5000, "no JSON|can't be compiled"),
    ("json_schema", {"allOf": [{"type": "string"}, {"type": "null"}]}, "[Uu]nsatisfiable"),
    ("regex", "(", "unclosed group"),
    ("regex", "a(?=b)", "look-around"),
    ("regex", None, "is empty, expected a text"),
    ("regex", "\ud800", "lone surrogate"),
    ("regex", "a" * 70_000, "70000 bytes long, the limit is 65536"),
    ("choice", [], "is empty, expected a list of texts"),
    ("choice", "yes", "expected a list of texts"),
    ("choice", ["a", 1], "expected a list of texts"),
    ("choice", [str(i) for i in range(3000)], "has 3000 texts, the limit is 2048"),
    ("grammar", 'root ::= ["a"', "can't be compiled"),
    ("grammar", "start: nothing", 'unknown name: "nothing"'),
]


@pytest.mark.parametrize(("kind", "spec", "said"), WRONG)
def test_what_cant_be_compiled_is_refused_by_field(made, kind, spec, said):
    with pytest.raises(RequestError, match=said) as refused:
        made["bytes"].compile(kind, spec)
    assert refused.value.field == f"structured_outputs.{kind}"
    assert str(refused.value).startswith(f"structured_outputs.{kind} ")
    assert len(str(refused.value)) < 600


def test_an_unknown_kind_and_a_field_of_ones_own(made):
    with pytest.raises(RequestError, match="'regexp' is none of .*did you mean 'regex'"):
        made["bytes"].compile("regexp", "a")
    with pytest.raises(RequestError, match="^response_format.schema is empty") as refused:
        made["bytes"].compile("json_schema", None, field="response_format.schema")
    assert refused.value.field == "response_format.schema"


def test_what_was_compiled_is_kept_and_shared_by_threads(tokenizers, monkeypatch):
    grammars, tokenizer, compiled = Grammars(tokenizers["bpe"], 500), tokenizers["bpe"], []
    plain = grammars._compiled
    monkeypatch.setattr(grammars, "_compiled", lambda *a: compiled.append(a[1]) or plain(*a))
    monkeypatch.setattr(module, "_MAX_CACHED", 3)
    walks = []

    def one():
        walks.append(walk(grammars.compile("json_schema", SCHEMAS["object"]), tokenizer, random.Random(7)))

    one()
    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A matcher of one's own each: a shared one would have refused the others' tokens.
    assert len(walks) == 5
    assert all(ids == walks[0] for ids in walks)
    for text in ("a0", "a1", "a2", "a0"):
        grammars.compile("regex", text)
    # The oldest is gone, and the last was there.
    grammars.compile("json_schema", json.dumps(SCHEMAS["object"]))
    assert compiled == [json.dumps(SCHEMAS["object"]), "a0", "a1", "a2", json.dumps(SCHEMAS["object"])]


def test_without_the_library_the_extra_is_named(monkeypatch, tokenizers):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r'pip install "kanawa\[serve\]"'):
        Grammars(tokenizers["bytes"], 300)


def test_a_vocabulary_without_a_stop_is_refused(tokenizers):
    with pytest.raises(UsageError, match=r"stop ids \[258\] none is in the model's vocabulary of 258"):
        Grammars(tokenizers["bytes"], 258)


TOOLS = [
    {"type": "function", "function": {"name": "clock"}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
]
FUNCTIONS = [tool["function"] for tool in TOOLS]


def test_calls_of_tools(made, tokenizers):
    expected = {"clock": [{}], "weather": [{"city": "Oslo"}, {"city": "Rome"}]}
    for seed in range(4):
        ids = walk(made["bpe"].compile("json_schema", call_schema(FUNCTIONS)), tokenizers["bpe"], random.Random(seed))
        call = json.loads(tokenizers["bpe"].decode(ids))
        assert call["arguments"] in expected[call["name"]]


@pytest.mark.parametrize("marks", [("<call>", "</call>"), ("<|turn|>", "</call>")])
@pytest.mark.parametrize("required", [True, False])
def test_calls_between_a_models_marks(made, tokenizers, marks, required):
    tokenizer, (begin, end) = tokenizers["byte_level"], marks
    special = {name: i for i, name in tokenizer.special_names.items()}
    text = tagged_grammar(FUNCTIONS, begin, end, required=required, special=special)
    grammar = made["byte_level"].compile("grammar", text)
    spoken = [] if required else tokenizer.encode("let me see ").tolist()
    opened = [special[begin]] if begin in special else tokenizer.encode(begin).tolist()
    for i in spoken + opened:
        assert i in ids_of(grammar.allowed(), grammar.vocab_size)
        grammar.accept(i)
    # From here on only a call of one of the tools.
    with pytest.raises(MatchError):
        wrong = grammar.fork()
        for i in tokenizer.encode('{"name": "nobody"').tolist():
            wrong.accept(i)
    for i in tokenizer.encode('{"name": "weather", "arguments": {"city": "Rome"}}' + end).tolist():
        grammar.accept(i)
    assert set(tokenizer.stop_ids) & set(ids_of(grammar.allowed(), grammar.vocab_size).tolist())
