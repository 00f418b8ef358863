"""`kanawa convert` takes folders; an address of a bucket is told from one before anything is written."""

import pytest
from kanawa.cli.main import main


@pytest.mark.parametrize("words", [["s3://bucket/x", "out"], ["in", "s3://bucket/x"], ["s3://bucket/x", "--dry-run"]])
@pytest.mark.parametrize("direction", ["from-hf", "to-hf"])
def test_an_address_is_no_folder(direction, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", direction, *words]) == 2
    assert "s3://bucket/x is an address; expected a local file or folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
