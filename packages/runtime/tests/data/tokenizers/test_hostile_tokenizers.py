"""Tokenizers that somebody else wrote: one error that names the file, and neither time nor memory spent."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kanawa.errors import UsageError
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.runs.tokenizer_file import TokenizerError

pytest.importorskip("tokenizers")

VOCAB = {chr(ord("a") + i): i for i in range(26)}
CONTENT = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 26,
            "content": "</s>",
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": VOCAB, "merges": []},
}
SETTINGS = {"eos_token": "</s>"}


def written(folder, content=CONTENT, said=SETTINGS, generation=None):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"content": {**CONTENT, "model": {**CONTENT["model"], "vocab": {"a": 2**60}}}}, "token 'a' has id 1152"),
        ({"content": {**CONTENT, "model": {**CONTENT["model"], "vocab": {"a": -1}}}}, "id -1, expected 0 to"),
        ({"content": {**CONTENT, "model": {**CONTENT["model"], "vocab": 5}}}, "int"),
        ({"content": {**CONTENT, "added_tokens": [5]}}, "int"),
        ({"content": {**CONTENT, "model": {**CONTENT["model"], "merges": [["a", "zz"]]}}}, "tokenizers library can't"),
        ({"content": {**CONTENT, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "A"}}}, "can.t read it"),
        ({"content": {**CONTENT, "decoder": {"type": "Nonsense"}}}, "library can't read it"),
        ({"generation": {"eos_token_id": [2, 10**30]}}, "a token's id is 1000"),
        ({"generation": {"eos_token_id": "x"}}, "a token's id is x, expected 0 to"),
        ({"said": []}, "tokenizer_config.json holds a list, expected an object"),
    ],
)  # fmt: skip
def test_values_that_no_tokenizer_has(tmp_path, changes, said):
    with pytest.raises(TokenizerError, match=said) as error:
        load_tokenizer(written(tmp_path / "model", **changes))
    assert "tokenizer.json" in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_files_that_are_not_read(tmp_path, name):
    folder = written(tmp_path / "model")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"is a link out of its folder, to /dev/zero"):
        load_tokenizer(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(UsageError, match=f"{name} is a pipe, expected an ordinary file"):
        load_tokenizer(folder)


def test_a_tokenizer_nested_beyond_reading(tmp_path):
    folder = written(tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"model": ' + "[" * 50_000 + "]" * 50_000 + "}")
    with pytest.raises(TokenizerError, match="nests lists and objects more than 100 deep"):
        load_tokenizer(folder)


VALUES = st.sampled_from([None, True, [], {}, [1], "", "x", 0, -1, 2**40, 10**30, 0.5, [[]], {"type": "x"}, "(a+)+$"])


def paths(data, at=()):
    yield from (p for k, v in data.items() for p in [(*at, k), *(paths(v, (*at, k)) if isinstance(v, dict) else ())])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_anywhere(tmp_path_factory, data):
    content = json.loads(json.dumps(CONTENT))
    *outer, last = data.draw(st.sampled_from([p for p in paths(content) if len(p) < 3 or p[1] != "vocab"]))
    node = content
    for key in outer:
        node = node[key]
    node[last] = data.draw(VALUES)
    settings_of = {data.draw(st.sampled_from(["eos_token", "bos_token", "pad_token"])): data.draw(VALUES)}
    numbers = {data.draw(st.sampled_from(["eos_token_id", "pad_token_id"])): data.draw(VALUES)}
    folder = written(tmp_path_factory.getbasetemp() / "model", content, settings_of, numbers)
    try:
        tokenizer = load_tokenizer(folder)
        tokenizer.decode(tokenizer.encode("a bad cab" * 20))
        assert len(tokenizer.tokens) == tokenizer.vocab_size
    except UsageError as error:
        assert "tokenizer" in str(error)
