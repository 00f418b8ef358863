"""Which texts are paths and which are addresses."""

from pathlib import Path

import pytest
from kanawa.errors import UsageError
from kanawa.local_path import local_path


@pytest.mark.parametrize("text", ["", "runs/a", "/abs/b", "./s3", "a:b", "C:/runs", "C:\\runs", "runs/a:/b", "../x:y"])
def test_paths_stay_as_they_are(text):
    assert local_path(text) == Path(text)


def test_the_home_folder_is_expanded():
    assert local_path("~/runs") == Path.home() / "runs"


@pytest.mark.parametrize("address", ["s3://bucket/run", Path("s3://bucket/run"), "s3:///bucket/run"])
def test_addresses_are_refused_naming_the_scheme(address):
    with pytest.raises(UsageError, match=r"^--run s3://bucket/run is an address, and no installed package speaks s3://"):
        local_path(address, "--run")
