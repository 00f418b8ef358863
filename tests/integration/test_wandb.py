"""Weights & Biases without a network: a real run logs offline, and their own reader finds it again."""

import json
import pathlib
import struct

import pytest

wandb = pytest.importorskip("wandb")

_BLOCK, _WHOLE, _LAST = 1 << 15, 1, 4
OPTIONS = ["--modify", 'service:name=wandb,values={"mode": "offline"}']


def offline_runs(run):
    return sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))


def stored(data):
    """Yields the messages of an offline file: LevelDB's log format (blocks of 32 KiB) after a header of 7 bytes."""
    at, message = 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:  # too little left in the block for a record's head
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield message
            message = b""


def logged(path):
    """Returns the id, the config's keys and the rows of an offline run."""
    from wandb.proto import wandb_internal_pb2 as records

    run_id, config, rows = "", set(), []
    for message in stored(path.read_bytes()):
        record = records.Record()
        record.ParseFromString(message)
        if record.WhichOneof("record_type") == "run":
            run_id = record.run.run_id
            config |= {item.key for item in record.run.config.update}
        if record.WhichOneof("record_type") == "history":
            rows.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return run_id, config, rows


def test_a_resumed_run_is_one_run_of_theirs(installation):
    for steps in (4, 8):
        done = installation.run("train", "tiny-lm", "--run", "runs/a", "--steps", str(steps), *OPTIONS)
        assert done.returncode == 0, done.stderr
        assert "service" not in done.stderr
    folder = pathlib.Path(installation.folder) / "runs" / "a"
    first, second = map(logged, offline_runs(folder))
    assert first[0] == second[0] == json.loads((folder / "wandb.json").read_text())["id"]
    assert {"batch_size", "learner", "model"} <= first[1]
    losses = {row["step"]: row["train/loss"] for row in first[2] + second[2] if "train/loss" in row}
    expected = {e["step"]: e["loss"] for e in installation.events("runs/a") if e["event"] == "step"}
    assert losses == expected
    assert any("train/gradient_norm" in row for row in first[2])
