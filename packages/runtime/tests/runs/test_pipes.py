"""A pipe in the place of a run's file is named, and never waited for nor taken for a file that isn't there."""

import os
from types import SimpleNamespace

import pytest
from kanawa.contracts import StorageError, StorageRefusedError
from kanawa_runtime.checkpoint.background import BackgroundCheckpointer
from kanawa_runtime.checkpoint.errors import CheckpointDamagedError
from kanawa_runtime.checkpoint.manifest import COMMIT, is_committed, read_manifest
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.runs.tokenizer_file import TOKENIZER, TokenizerError, exported_tokenizer, tokenizer_file


def test_a_pipe_as_tokenizer(tmp_path):
    os.mkfifo(tmp_path / TOKENIZER)
    file = tokenizer_file(tmp_path)
    assert file is not None
    with pytest.raises(TokenizerError, match="is a pipe, expected an ordinary file"):
        load_tokenizer(file)
    with pytest.raises(TokenizerError, match="is a pipe, expected an ordinary file"):
        exported_tokenizer(tmp_path)


def test_a_pipe_as_commit_is_damage_and_no_save_that_never_ended(tmp_path):
    assert not is_committed(tmp_path)
    os.mkfifo(tmp_path / COMMIT)
    assert is_committed(tmp_path)
    with pytest.raises(CheckpointDamagedError, match="is a pipe"):
        read_manifest(tmp_path)


def test_what_to_do_about_a_failed_save_depends_on_what_failed(tmp_path):
    bucket, folder = SimpleNamespace(directory="s3://bucket/run"), SimpleNamespace(directory=tmp_path / "checkpoints")
    advice = BackgroundCheckpointer._advice
    assert advice(bucket, StorageError("503 Slow Down")) == "Training goes on, and saves again once the storage answers"
    assert advice(bucket, StorageRefusedError("403")) == "Fix the rights or the address"
    assert advice(folder, OSError("No space left on device")) == "Free space or fix permissions"
