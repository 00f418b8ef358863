"""Paths read back to the same keys; the glob agrees with a naive matcher."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.config import PathError, join_path, match_path, parse_path

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True)
KEYS = st.lists(st.one_of(NAMES, st.text(max_size=6), st.integers(0, 99)), max_size=6)


@settings(deadline=None, max_examples=60)
@given(KEYS)
def test_join_then_parse_is_identity(keys: list[str | int]) -> None:
    assert parse_path(join_path(keys)) == tuple(keys)


@settings(deadline=None, max_examples=60)
@given(KEYS, KEYS)
def test_a_path_without_wildcards_matches_only_itself(keys: list, others: list) -> None:
    path, other = join_path(["root", *keys]), join_path(["root", *others])
    assert match_path("**", path)
    plain = [k for k in (*keys, *others) if isinstance(k, str) and not k.isidentifier()] == []
    if plain:
        assert match_path(path, path)
        assert match_path(path, other) == (path == other)


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("", ()),
        ("a.b[0].c", ("a", "b", 0, "c")),
        ("layer[0][12]", ("layer", 0, 12)),
        ('mesh["a.b"].x', ("mesh", "a.b", "x")),
        ("mesh[data]", ("mesh", "data")),
        ("gpu-8.x_1", ("gpu-8", "x_1")),
        ("[3].a", (3, "a")),
    ],
)
def test_parse(path: str, keys: tuple) -> None:
    assert parse_path(path) == keys


@pytest.mark.parametrize(
    "path",
    ["a..b", ".a", "a.", "a[", "a[]", "a[-1]", "a[0", 'a["x]', "a b", "a[0]b", "*", "a[*]", "0a"],
)
def test_unreadable_paths_say_where(path: str) -> None:
    with pytest.raises(PathError, match=r"can't read path .*expected .* at character \d+, found"):
        parse_path(path)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("**", "", True),
        ("*", "", False),
        ("*", "a", True),
        ("*", "layer[0]", True),
        ("*", "a.b", False),
        ("layer", "layer[0]", False),
        ("layer[*]", "layer[0]", True),
        ("layer[*]", "layer", False),
        ("layer[0]", "layer0", False),
        ("layer[0]", "layer[0]", True),
        ("layer[1]", "layer[0]", False),
        ("layer[*].norm", "layer[31].norm", True),
        ("*[*].norm", "layer[31].norm", True),
        ("**.layer.*", "model.stack.layer.ff", True),
        ("**.layer.*", "layer.ff", True),
        ("**.layer.*", "model.layer.ff.norm", False),
        ("**.layer.**", "model.layer", True),
        ("a.**.b", "a.b", True),
        ("a.**.b", "a.x.y[2].b", True),
        ("a.**.b", "a.x.c", False),
        ("**.**", "a", True),
        ("norm*", "norm_1", True),
        ("*norm", "pre_norm", True),
        ("n*m", "norm_1", False),
        ("mesh[data]", "mesh.data", False),
    ],
)
def test_glob(glob: str, path: str, matches: bool) -> None:
    assert match_path(glob, path) is matches


GLOBS = st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "a[0]", "a[*]"]), min_size=1, max_size=5)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "a[0]", "a[1]", "b[0]"]), max_size=6)


def _regex(segments: list[str]) -> str:
    pieces = {
        "*": r"[^.]+",
        "a*": r"a\w*",
        "a[*]": r"a\[\d+\]",
        "a[0]": r"a\[0\]",
    }
    text = "".join(r"(?:[^.]+\.)*" if s == "**" else pieces.get(s, s) + r"\." for s in segments)
    return text


@settings(deadline=None, max_examples=60)
@given(GLOBS, PATHS)
def test_glob_agrees_with_a_regular_expression(glob: list[str], path: list[str]) -> None:
    expected = re.fullmatch(_regex(glob), "".join(s + "." for s in path)) is not None
    assert match_path(".".join(glob), ".".join(path)) is expected


def test_any_depth_stands_alone() -> None:
    with pytest.raises(PathError, match="to stand alone between dots"):
        match_path("a**", "a")
