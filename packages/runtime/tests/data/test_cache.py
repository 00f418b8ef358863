"""The cache may be damaged, missing or read-only; the answer must stay right."""

import logging
from pathlib import Path

import pytest
from kanawa_runtime.data.derived import cache_key, cached


class Builder:
    """Counts how often it builds."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self) -> bytes:
        self.built += 1
        return b"payload\nwith lines\n"


def test_builds_once(cache: Path) -> None:
    build = Builder()
    assert [cached("kind", "key", build, bytes.upper) for _ in range(2)] == [b"PAYLOAD\nWITH LINES\n"] * 2
    assert build.built == 1
    assert [path.name for path in (cache / "kind").iterdir()] == ["key-sealed"]


@pytest.mark.parametrize("position", [0, 40, -1])
def test_damage_is_noticed_and_repaired(cache: Path, caplog: pytest.LogCaptureFixture, position: int) -> None:
    build = Builder()
    good = cached("kind", "key", build, bytes)
    path = cache / "kind" / "key-sealed"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cached("kind", "key", build, bytes) == good
    assert "is damaged: it is removed, and made anew" in caplog.text
    assert cached("kind", "key", build, bytes) == good
    assert build.built == 2


def test_truncation_and_entries_that_dont_parse(cache: Path) -> None:
    build = Builder()
    cached("kind", "key", build, bytes)
    path = cache / "kind" / "key-sealed"
    path.write_bytes(path.read_bytes()[:-5])
    cached("kind", "key", build, bytes)
    assert build.built == 2

    calls = []

    def parse(payload: bytes) -> bytes:
        calls.append(payload)
        if len(calls) == 1:
            message = "written by another version"
            raise ValueError(message)
        return payload

    assert cached("kind", "key", build, parse) == b"payload\nwith lines\n"
    assert build.built == 3


def test_folder_that_cant_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "file"))
    assert cached("kind", "key", Builder(), bytes) == b"payload\nwith lines\n"
    assert "set KANAWA_CACHE or JAX_COMPILATION_CACHE_DIR to a writable folder" in caplog.text


def test_keys_separate_their_parts() -> None:
    assert cache_key("a", "bc") != cache_key("ab", "c")
