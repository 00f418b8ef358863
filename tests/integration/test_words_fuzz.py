"""Whatever is said to a modifier, a target, --data, or by a saved config: it composes, or one error says why not."""

import functools
import json
import string

import kanawa as kn
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kanawa.config import to_json
from kanawa.errors import KanawaError, UsageError
from kanawa.plugins import component, host
from kanawa_runtime.runs.run_directory import read_config
from wild_values import DATA, KNOWN, TAGS, TEXTS

BASES = ["quickstart", "llama-tiny", "qwen3-30b-a3b"]
MODIFIERS = sorted(state.name for state in host().components("modifiers"))
DEVICES = ["cpu", "v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "h200", "b200", "a100", "trn1", "trn2", "gpu", "tpu", "x"]
COUNTS = st.one_of(
    st.integers(-2, 600).map(str), st.sampled_from(["", "9" * 300, "٣", "1e3", "0x8", "0", "4x8x8", "8.5"])
)
TARGETS = st.one_of(
    st.builds("{}-{}".format, st.sampled_from(DEVICES), COUNTS),
    st.builds("{}-{}x{}".format, st.sampled_from(DEVICES), COUNTS, COUNTS),
    st.text(max_size=12),
    st.sampled_from([*DEVICES, "CPU", " cpu ", "-", "cpu-8\n", "v5p-512,v6e-8", "\ud800", "cpu-8-8", "h100-8x-1"]),
)
WORDS = st.one_of(
    st.sampled_from(["", ".", "~", "~nobody9", "/dev/zero", "/dev/null", "/proc/self/mem", "*", "**", "a\0b"]),
    st.sampled_from(["\ud800", "x" * 9000, "x" * 300]),
    st.sampled_from(["s3://a/b", "[", "{a", "quickstart", "tiny-lm", "../*", "python", "text-files", "-"]),
    st.text(max_size=9),
)  # fmt: skip


def composes_or_says_why(name: str, **words) -> None:
    try:
        kn.compose(name, **words)
    except UsageError as error:
        assert str(error)
        assert len(str(error)) < 20_000
    broken = [state.key for state in host().plugins() if state.state == "broken"]
    assert not broken, f"{broken} failed at {name} {words}"


@functools.cache
def fields(modifier: str) -> list[str]:
    return sorted(component("modifiers", modifier).Config.fields())


def any_modifier(data: st.DataObject) -> None:
    said = []
    for name in data.draw(st.lists(st.sampled_from(MODIFIERS), min_size=1, max_size=2)):
        chosen = data.draw(st.lists(st.sampled_from([*fields(name), "no"]), max_size=2, unique=True))
        pairs = [f"{field}={data.draw(TEXTS)}" for field in chosen]
        said.append(name + (":" + ",".join(pairs) if pairs else ""))
    composes_or_says_why(data.draw(st.sampled_from(BASES)), modifiers=said)


def any_target(data: st.DataObject) -> None:
    composes_or_says_why(data.draw(st.sampled_from(BASES)), target=data.draw(TARGETS))


def any_data(data: st.DataObject) -> None:
    composes_or_says_why(data.draw(st.sampled_from(BASES[:2])), data=data.draw(WORDS))


def any_name(data: st.DataObject) -> None:
    composes_or_says_why(data.draw(st.one_of(WORDS, st.text(string.printable, max_size=30))))


@functools.cache
def saved(name: str) -> str:
    return json.dumps(to_json(kn.compose(name).config, origins=True))


def nodes(data: object) -> list[dict]:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else []
    return [*([data] if isinstance(data, dict) and data else []), *(node for value in inner for node in nodes(value))]


def any_saved_config(data: st.DataObject, folder) -> None:
    text = saved(data.draw(st.sampled_from(["quickstart", "tiny-lm"])))
    content = json.loads(text)
    for _ in range(data.draw(st.integers(1, 2))):
        node = data.draw(st.sampled_from(nodes(content)))
        key = data.draw(st.sampled_from([*node, "$type", "no"]))
        value = st.one_of(DATA, st.dictionaries(TAGS, DATA), st.sampled_from(KNOWN), st.integers(), st.floats())
        node[key] = data.draw(value)
    written = json.dumps(content)
    cut = data.draw(st.one_of(st.just(len(written)), st.integers(0, len(written))))
    (folder / "config.json").write_text(written[:cut])
    try:
        cfg = read_config(folder)
        kn.compose(cfg)
    except KanawaError as error:
        assert error.exit_code == 2, error


FUZZERS = [any_modifier, any_target, any_data, any_name]


@pytest.mark.parametrize("fuzzer", FUZZERS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_words(fuzzer, data):
    fuzzer(data)


@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_saved_config(tmp_path_factory, data):
    any_saved_config(data, tmp_path_factory.getbasetemp())


@pytest.mark.nightly
@pytest.mark.parametrize("fuzzer", FUZZERS)
@settings(max_examples=3_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_words_for_long(fuzzer, data):
    fuzzer(data)


@pytest.mark.nightly
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_saved_config_for_long(tmp_path_factory, data):
    any_saved_config(data, tmp_path_factory.getbasetemp())
