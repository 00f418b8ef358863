"""A file that is exchanged while it is looked at is read as what it is by then."""

import os

import pytest
from kanawa import guarded_read
from kanawa.guarded_read import UnreadableFileError, guarded_bytes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are Unix's")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text("{}")

    def exchanged(*arguments):
        file.unlink()
        os.mkfifo(file)

    assert guarded_bytes(file, tmp_path, most=2) == b"{}"
    monkeypatch.setattr(guarded_read, "check_readable", exchanged)
    with pytest.raises(UnreadableFileError, match=r"config\.json is a pipe, expected an ordinary file"):
        guarded_bytes(file, tmp_path, most=2)
