"""What may and may not be opened as a run."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kanawa.config import REQUIRED, Config, Configurable, digest, to_json
from kanawa.contracts import LeaseHeldError, StorageError, StorageRefusedError
from kanawa_runtime.checkpoint import ShardedCheckpointer
from kanawa_runtime.runs.run_directory import RunDirectory, RunDirectoryError, read_config


class Execution(Config):
    devices: int = 1


class Experiment(Configurable):
    class Config(Configurable.Config):
        PLACEMENT = ("execution",)

        width: int = REQUIRED
        rate: float = 1e-3
        execution: Execution = Execution()


def _config(**fields: object) -> Config:
    return Experiment.Config(**({"width": 8} | fields)).freeze()


def test_a_new_run_holds_a_config_that_loads_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    with RunDirectory.open(path, _config()) as run:
        assert run.attempt == 1
        assert run.events().path == path / "events.jsonl"
        meta = run.meta()
    assert read_config(path) == _config()
    assert json.loads((path / "config.json").read_text())["$origins"]
    record = json.loads((path / "plugins.json").read_text())
    assert record["format"] == 1
    assert "kanawa-runtime" in record["plugins"]
    assert meta["experiment_digest"] == digest(_config(), "experiment")
    assert (path / "checkpoints").is_dir()


def test_a_resume_is_the_next_attempt_and_reports_placement_changes(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, _config()) as run:
        run.events().write("run_started")
    with RunDirectory.open(tmp_path, _config(execution=Execution(devices=4))) as run:
        assert run.attempt == 2
        assert [str(change) for change in run.changes] == ["execution.devices: 1 -> 4"]
        assert run.description()["config_changes"] == [{"path": "execution.devices", "old": 1, "new": 4}]
    assert read_config(tmp_path).execution.devices == 4


def test_an_attempt_that_failed_before_its_first_step_leaves_the_folder_to_another_experiment(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, _config()) as run:
        run.events().write("run_started")
    (tmp_path / "tokenizer.json").write_text("of the first one's text")
    with RunDirectory.open(tmp_path, _config(width=16)) as run:
        assert "width: 8 -> 16" in [str(change) for change in run.changes]
    assert read_config(tmp_path).width == 16
    assert not (tmp_path / "tokenizer.json").exists()


def test_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, _config()) as run:
        run.events().write("step", step=1)
    other = _config(width=16, rate=0.5, execution=Execution(devices=2))
    with pytest.raises(RunDirectoryError) as caught:
        RunDirectory.open(tmp_path, other)
    text = str(caught.value)
    assert "belongs to another experiment" in text
    assert "width: 8 -> 16" in text
    assert "rate: 0.001 -> 0.5" in text
    assert "execution" not in text
    RunDirectory.open(tmp_path, _config()).close()


@pytest.mark.parametrize("damage", ["{", "[]", '{"width": 8}', ""])
def test_a_damaged_config_says_what_is_intact_and_how_to_recover(tmp_path: Path, damage: str) -> None:
    RunDirectory.open(tmp_path, _config()).close()
    (tmp_path / "config.json").write_text(damage)
    step = tmp_path / "checkpoints" / "7"
    step.mkdir()
    (step / "COMMIT.json").write_text("{}")
    with pytest.raises(RunDirectoryError) as caught:
        RunDirectory.open(tmp_path, _config())
    text = str(caught.value)
    assert "config.json can't be read" in text
    assert "checkpoints are intact (steps [7])" in text
    assert "kanawa show EXPERIMENT --json" in text
    (tmp_path / "config.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"config\.json is missing\nits checkpoints are intact"):
        RunDirectory.open(tmp_path, _config())
    (tmp_path / "config.json").write_text(json.dumps(to_json(_config())))
    RunDirectory.open(tmp_path, _config()).close()


@pytest.mark.parametrize("kept", ["plugins.json", "checkpoint"])
def test_a_missing_plugin_is_named_from_what_the_run_recorded(tmp_path: Path, kept: str) -> None:
    RunDirectory.open(tmp_path, _config()).close()
    (tmp_path / "config.json").write_text('{"$type": "fake_spice.layer:Chili.Config"}')
    record = {"plugins": {"fake-spice": "1.2", "kanawa": "0.1.0"}}
    if kept == "checkpoint":
        checkpointer = ShardedCheckpointer.Config().build(directory=tmp_path / "checkpoints")
        checkpointer.save(7, params={}, opt={}, meta=record)
        checkpointer.close()
        (tmp_path / "plugins.json").unlink()
    else:
        (tmp_path / "plugins.json").write_text(json.dumps(record))
    with pytest.raises(RunDirectoryError) as caught:
        read_config(tmp_path)
    text = str(caught.value)
    assert "config.json is sound, but it needs code that can't be loaded here: fake_spice.layer:Chili.Config" in text
    assert "fake-spice 1.2 was recorded with it and is not installed: pip install fake-spice==1.2" in text
    assert "kanawa show" not in text, "nobody should write a sound config anew"


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, _config()).close()
    record = json.loads((tmp_path / "plugins.json").read_text())
    (tmp_path / "plugins.json").write_text(json.dumps(record | {"format": 99}))
    with pytest.raises(RunDirectoryError, match="in layout 99; this one knows layout 1. Upgrade"):
        RunDirectory.open(tmp_path, _config())
    (tmp_path / "plugins.json").write_text(json.dumps(record))
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | {"$version": 99}))
    with pytest.raises(RunDirectoryError, match="99"):
        RunDirectory.open(tmp_path, _config())


def test_a_directory_with_other_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"holds other files \(thesis\.tex\)"):
        RunDirectory.open(tmp_path, _config())
    with pytest.raises(RunDirectoryError, match="is not a run: it has no config.json"):
        read_config(tmp_path)


def test_an_interrupted_creation_is_finished_by_the_next(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, _config()).close()
    (tmp_path / "config.json").unlink()
    RunDirectory.open(tmp_path, _config(width=9)).close()
    assert read_config(tmp_path).width == 9


def test_a_full_disk_is_reported_before_anything_starts(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunDirectoryError, match="can't be written: File too large; nothing was started"):
            RunDirectory.open(tmp_path, _config())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    RunDirectory.open(tmp_path, _config()).close()


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 200), (errno.EROFS, 200), (errno.EIO, 200), (errno.ESTALE, 200), (errno.EACCES, 2)],
)
@pytest.mark.parametrize("call", ["write", "fsync", "mkdir"])
def test_storage_that_cannot_be_written_at_the_start_is_worth_another_start(tmp_path, monkeypatch, number, code, call):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    target = Path if call == "mkdir" else os
    monkeypatch.setattr(target, {"write": "open", "fsync": "fsync", "mkdir": "mkdir"}[call], refuse)
    with pytest.raises((RunDirectoryError, StorageError)) as caught:
        RunDirectory.open(tmp_path / "run", _config())
    monkeypatch.undo()
    if isinstance(caught.value, RunDirectoryError):
        assert caught.value.exit_code == code
    else:
        # As the verb judges it.
        assert isinstance(caught.value, StorageRefusedError) == (code == 2)


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="can't be written: .*choose another --run directory"):
        RunDirectory.open(tmp_path / "file" / "run", _config())


def test_a_second_writer_is_refused_at_once_and_a_dead_one_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from kanawa_runtime.runs.run_directory import LEASE
        from kanawa_runtime.storage.lease import StorageLease
        from kanawa_runtime.storage.local import open_folder
        StorageLease(open_folder(Path(sys.argv[1])), LEASE, where=sys.argv[1]).acquire()
        print("held", flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        # One that is stopped holds it as well: at once, without waiting for a sign of life.
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(LeaseHeldError, match=f"is being written by process {holder.pid} on "):
            RunDirectory.open(tmp_path, _config())
        holder.kill()
        holder.wait()
        RunDirectory.open(tmp_path, _config()).close()
    with (
        RunDirectory.open(tmp_path, _config()),
        pytest.raises(LeaseHeldError, match=str(os.getpid())),
    ):
        RunDirectory.open(tmp_path, _config())
