"""Which texts are paths and which are addresses."""

from pathlib import Path

import pytest
from kanawa.errors import UsageError
from kanawa.local_path import cache_folder, local_path


@pytest.mark.parametrize("text", ["", "runs/a", "/abs/b", "./s3", "a:b", "C:/runs", "C:\\runs", "runs/a:/b", "../x:y"])
def test_paths_stay_as_they_are(text):
    assert local_path(text) == Path(text)


def test_the_home_folder_is_expanded():
    assert local_path("~/runs") == Path.home() / "runs"


@pytest.mark.parametrize("address", ["s3://bucket/run", Path("s3://bucket/run"), "s3:///bucket/run"])
def test_addresses_are_refused_naming_the_scheme(address):
    with pytest.raises(UsageError, match=r"^--run s3://bucket/run is an address; expected a local file or folder"):
        local_path(address, "--run")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("~nobody9/runs", "there is no home folder to put in place of ~; give the whole path"),
        ("a\0b", "it has a NUL character"),
        ("\ud800", "can't be the name of a file: surrogates not allowed"),
        ("x" * 256, "a name has at most 255 bytes"),
        ("a/" * 3_000, "a path 4095"),
    ],
)
def test_texts_that_no_file_system_takes(text, said):
    with pytest.raises(UsageError, match=said) as error:
        local_path(text, "--run")
    assert str(error.value).startswith("--run ")


def test_caches_without_a_home(monkeypatch):
    def homeless():
        message = "Could not determine home directory."
        raise RuntimeError(message)

    monkeypatch.delenv("KANAWA_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder().name.startswith("kanawa-")
