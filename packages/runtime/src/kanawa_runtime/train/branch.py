"""A branch: a new run that goes on from another one's checkpoint, optimizer and data position included.

RUN/branch.json says where a run branched off, and which row its first batch begins with; the other run's
`branches.jsonl` (at an address, `branches/ID.json`) names it.
"""

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

from kanawa.contracts import Restored, open_storage
from kanawa.errors import UsageError
from kanawa.guarded_read import check_readable, guarded_bytes

from kanawa_runtime.checkpoint.agreement import is_primary, shared_text
from kanawa_runtime.runs.run_directory import RunDirectory, checkpoints_of, steps_of
from kanawa_runtime.runs.run_path import check_is_run
from kanawa_runtime.storage.durable import write_durable
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import address_of, run_place, shown_place, stands_for

BRANCH, BRANCHES = "branch.json", "branches.jsonl"
_MOST_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Branch:
    """Where a run branches off: the other run's folder, and a committed step of it; None is its newest."""

    folder: Path
    step: int | None

    @property
    def place(self) -> str:
        """The other run's folder or address."""
        return stands_for(self.folder) or str(self.folder.resolve())

    def restored(self, checkpointer: Any, asked: dict[str, Any]) -> Restored:
        """Returns the asked items of that step, by a checkpointer of this kind; raises CheckpointError, UsageError."""
        checkpoints = checkpointer.build(directory=checkpoints_of(self.folder), read_only=True)
        restored: Restored | None = checkpoints.restore(asked, step=self.step)
        if restored is None:
            message = f"--branch-from: {shown_place(self.folder)} holds no committed checkpoint yet"
            raise UsageError(message)
        return restored

    def record(self, run: RunDirectory, restored: Restored, digest: str, batch_size: int) -> dict[str, Any]:
        """Writes it down in both runs, and returns what the new one's event says.

        Other data are read from their first row.
        """
        is_same = restored.data["digest"] == digest
        row = int(restored.data["row"]) if is_same else 0
        fields = {"run": self.place, "step": restored.step, "row": row, "same_data": is_same}
        if not run.is_primary:
            return fields
        offset = row - restored.step * batch_size
        write_durable(run.path / BRANCH, json.dumps({**fields, "row_offset": offset}).encode())
        line = json.dumps({"run": run.place, "step": restored.step}).encode()
        address = stands_for(self.folder)
        if address is not None:
            open_storage(address).write(f"branches/{uuid.uuid4().hex}.json", line)
        else:
            branches = self.folder / BRANCHES
            branches.touch()
            check_readable(branches, self.folder)
            with branches.open("ab") as file:
                file.write(line + b"\n")
        return fields


def branch_at(text: str) -> Branch:
    """Returns the branch of `--branch-from RUN@STEP`, or of RUN alone; raises UsageError for anything else."""
    place, at, step = text.rpartition("@")
    if not at or not step.isdecimal():
        if at and address_of(text) is None and not Path(text).exists() and Path(place).is_dir():
            message = (
                f"--branch-from {text}: expected the number of a checkpoint after the @, not {step!r}; {place} holds "
                f"{', '.join(map(str, steps_of(Path(place)))) or 'none yet'}"
            )
            raise UsageError(message)
        place, step = text, ""
    folder = readable_folder(run_place(place, "--branch-from"))
    check_is_run(folder)
    return Branch(folder, int(step) if step else None)


def row_offset(run: Path) -> int:
    """Returns the row that batch 0 of a run would begin with: 0, or what a branch goes on from. All processes call."""
    path = run / BRANCH
    text = '{"row_offset": 0}'
    if is_primary() and path.exists():
        text = guarded_bytes(path, run, most=_MOST_BYTES).decode()
    return int(json.loads(shared_text(text))["row_offset"])
