"""A damaged checkpoint is restored bit for bit, reported, or passed over; never silently wrong."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kanawa.contracts import CheckpointError
from kanawa_runtime.checkpoint import CheckpointDamagedError, OrbaxCheckpointer

from .checkpoint_trees import ABANDONED, abstract, assert_bitwise, make_trees

pytestmark = ABANDONED


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with the committed steps 1 and 2."""
    directory = tmp_path_factory.mktemp("sound")
    checkpointer = OrbaxCheckpointer.Config().build(directory=directory)
    for step in (1, 2):
        checkpointer.save(step, **make_trees(step), data={"row": step}, meta={"digest": "abc"})
    checkpointer.close()
    return directory


def _files(folder: Path) -> list[Path]:
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


def _outcome(directory: Path, step: int | None = None) -> str:
    """Returns "exact", "fallback" or "error"; fails on anything silently wrong."""
    try:
        restored = (
            OrbaxCheckpointer.Config()
            .build(directory=directory, read_only=True)
            .restore(abstract(make_trees()), step=step)
        )
    except CheckpointError:
        return "error"
    assert restored is not None
    assert_bitwise(restored.items, make_trees(restored.step))
    assert restored.data == {"row": restored.step}
    assert restored.meta == {"digest": "abc"}
    if restored.step == 2:
        return "exact"
    assert restored.damaged.get(2) or not (directory / "2" / "COMMIT.json").exists()
    return "fallback"


def test_single_flipped_bits_never_restore_wrong_values(sound: Path, tmp_path: Path) -> None:
    rng = random.Random(20261121)
    copy = shutil.copytree(sound, tmp_path / "copy")
    files = _files(copy / "2")
    outcomes = []
    for _ in range(40):
        path = copy / "2" / rng.choice(files)
        original = path.read_bytes()
        if not original:
            continue
        flipped = bytearray(original)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        outcomes.append(_outcome(copy))
        path.write_bytes(original)
    assert _outcome(copy) == "exact"
    assert set(outcomes) == {"exact", "fallback"}


def test_flips_in_array_bytes_are_named_by_path(sound: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    largest = max((copy / "2" / "params").rglob("d/*"), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(CheckpointDamagedError, match=r"params") as caught:
        OrbaxCheckpointer.Config().build(directory=copy, read_only=True).restore(abstract(make_trees()), step=2)
    assert any(reason.startswith("params") for reason in caught.value.reasons)


@pytest.mark.parametrize("damage", ["truncate", "delete"])
def test_truncated_and_deleted_files(sound: Path, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    harm: dict[str, Callable[[Path], Any]] = {
        "truncate": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
        "delete": lambda p: p.unlink(),
    }
    outcomes = {}
    for name in _files(copy / "2"):
        path = copy / "2" / name
        original = path.read_bytes()
        harm[damage](path)
        outcomes[str(name)] = _outcome(copy)
        path.write_bytes(original)
    assert "error" not in outcomes.values()
    assert outcomes["manifest.json"] == "fallback"
    assert outcomes["COMMIT.json"] == "fallback"
    assert "fallback" in outcomes.values()


def test_a_fallback_is_explained_and_the_damaged_step_can_be_saved_again(sound: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    manifest = copy / "2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"digest": "', b'"digest": "0', 1))
    events: list[tuple[str, Any]] = []
    checkpointer = OrbaxCheckpointer.Config().build(
        directory=copy, on_event=lambda kind, fields: events.append((kind, dict(fields)))
    )
    restored = checkpointer.restore(abstract(make_trees()))
    assert restored is not None
    assert restored.step == 1
    [(kind, fields)] = events
    assert (kind, fields["step"], fields["used"]) == ("checkpoint_damaged", 2, 1)
    assert "manifest.json has SHA-256" in fields["reasons"][0]
    assert checkpointer.steps() == [1]
    assert (copy / "2.damaged").is_dir()
    assert checkpointer.save(2, **make_trees(2), data={"row": 2}, meta={"digest": "abc"})
    checkpointer.close()
    assert _outcome(copy) == "exact"


def test_an_explicit_step_never_falls_back(sound: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    (copy / "2" / "manifest.json").unlink()
    assert _outcome(copy, step=2) == "error"


def test_when_nothing_is_sound_every_reason_is_given(sound: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    for step in ("1", "2"):
        (copy / step / "manifest.json").unlink()
    with pytest.raises(CheckpointDamagedError, match=r"none of the checkpoints") as caught:
        OrbaxCheckpointer.Config().build(directory=copy).restore(abstract(make_trees()))
    assert len(caught.value.reasons) == 2
    assert (copy / "1").is_dir()


def test_files_swapped_between_steps_are_noticed(sound: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sound, tmp_path / "copy")
    shutil.rmtree(copy / "2" / "opt")
    shutil.copytree(copy / "1" / "opt", copy / "2" / "opt")
    assert _outcome(copy) == "fallback"
    shutil.rmtree(copy / "2")
    shutil.copytree(copy / "1", copy / "2")
    assert _outcome(copy, step=2) == "error"
