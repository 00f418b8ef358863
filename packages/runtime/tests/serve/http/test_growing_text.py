"""What has become certain of a text: whole characters, and nothing that a stop string may still claim."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer
from kanawa_runtime.data.tokenizers.load import files_state
from kanawa_runtime.serve.growing_text import GrowingText, StopStrings

from ...data.tokenizers.library_tokenizers import TEXT, byte_level, sentence_pieces
from .running_server import BYTES

#: Few letters, so that stop strings overlap with themselves, with each other and with the text.
SHORT = st.text("ab\n🎉", max_size=12)
STOPS = st.lists(st.text("ab\n🎉", min_size=1, max_size=4), max_size=3, unique=True).map(tuple)


def ended(text, stops, include):
    """Returns what is left of a text that arrives a character at a time, and the stop string; by the definition."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text, places):
    """Returns the pieces of a text between some places."""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


@given(SHORT, STOPS, st.lists(st.integers(0, 12), max_size=6), st.booleans())
@example("aab", ("ab", "aab"), [], False)
@example("abab", ("bab", "aba"), [2], True)
def test_a_text_ends_where_the_first_stop_string_is_complete(text, stops, places, include):
    growing, written = StopStrings(stops, include=include), ""
    whole, stop = ended(text, stops, include)
    for piece in cut(text, places):
        written += growing.push(piece)
        # What has been given out is never taken back.
        assert whole.startswith(written)
    written += growing.finish()
    assert (written, growing.hit) == (whole, stop)


@given(SHORT, STOPS, st.lists(st.integers(0, 12), max_size=6))
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops, places):
    growing, written, read = StopStrings(stops), "", ""
    for piece in cut(text, places):
        written, read = written + growing.push(piece), read + piece
        if growing.hit is None:
            held = read[len(written) :]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.fixture(scope="module", params=["bytes", "byte-level", "sentence-pieces"])
def tokenizer(request):
    if request.param == "bytes":
        return BYTES
    made = (byte_level if request.param == "byte-level" else sentence_pieces)()
    return HuggingFaceTokenizer.Config().build(state=files_state({"tokenizer.json": made.to_str()}, {}))


@given(prompt=st.sampled_from([*TEXT[:3], ""]), text=st.sampled_from(TEXT[:3]), data=st.data())
def test_pieces_join_to_what_the_tokenizer_decodes(tokenizer, prompt, text, data):
    ids = tokenizer.encode(text).tolist()
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    before = tokenizer.encode(prompt).tolist()
    whole = tokenizer.decode(before + ids)[len(tokenizer.decode(before)) :]
    growing = GrowingText(tokenizer, before)
    pieces = [growing.push(i) for i in ids]
    # A character's bytes may be several tokens: it is given out when it is whole.
    assert not any("�" in piece for piece in pieces)
    text = "".join(pieces) + growing.finish()
    # Where the ids end within a character, its library takes the whole characters in front of it for broken too.
    assert text == whole or (text.endswith("�") and whole.endswith("�"))


@given(st.binary(max_size=40), STOPS)
def test_bytes_that_are_no_text_hold_nothing_up(data, stops):
    growing, text = GrowingText(BYTES, [1], stops), ""
    for count, byte in enumerate(data, 1):
        text += growing.push(byte)
        longest = max(map(len, stops), default=0)
        # At most an unfinished character is held back beside what a stop string may claim.
        assert growing.stop or len(data[:count].decode("utf-8", "replace")) - len(text) <= longest + 3
    text += growing.finish()
    assert text == ended(data.decode("utf-8", "replace"), stops, False)[0]


def test_special_tokens_have_a_text_where_asked():
    ids = [97, BYTES.eos_id, 98]
    shown = GrowingText(BYTES, special={BYTES.eos_id: "<end>"})
    silent = GrowingText(BYTES)
    assert "".join(map(shown.push, ids)) == "a<end>b"
    assert "".join(map(silent.push, ids)) == "ab"
    # Ids that pad a model's vocabulary stand for nothing.
    assert silent.push(10_000) == ""
