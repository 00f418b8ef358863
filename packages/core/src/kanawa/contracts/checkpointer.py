"""Saves and restores a run's state by step; the trainer's `checkpointer` slot."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kanawa.config import Configurable
from kanawa.contracts.storage import Lease, is_address
from kanawa.errors import KanawaError

#: Receives ("checkpoint_committed" | "checkpoint_dropped" | "checkpoint_failed" | "checkpoint_damaged", fields) on any
#: thread. Fields of the first: `step`, `path`, and what else is known, such as `bytes` and `seconds`.
CheckpointCallback = Callable[[str, Mapping[str, Any]], None]


class CheckpointError(KanawaError):
    """Base of all checkpoint errors."""


class CheckpointSaveError(CheckpointError):
    """A checkpoint could not be written; older ones are untouched."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """One checkpoint: the asked items as trees of arrays, the data state and the meta record.

    `damaged` maps newer steps that were passed over to what was wrong with them. `place` says where the step was read,
    if that may be another place than `location` returns.
    """

    step: int
    items: Mapping[str, Any]
    data: Any
    meta: Mapping[str, Any]
    damaged: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    place: str = ""


class Checkpointer(Configurable):
    """Keeps `params`, `state`, `opt` (arrays) and `data`, `meta` (JSON) by step; a component of kind "checkpointers".

    A step's number is the count of completed updates. All processes of a run make the same calls in the same order.
    When to save and what to keep is the run's policy (`checkpoints` in the trainer's config) and arrives at building;
    how is the component's own config.
    """

    def __init__(
        self,
        cfg: Any,
        *,
        directory: Path | str,
        keep_last_n: int = 3,
        keep_every_n_steps: int | None = None,
        on_event: CheckpointCallback | None = None,
        read_only: bool = False,
        lease: Lease | None = None,
    ) -> None:
        """Takes where the steps lie: a folder, or an address such as `s3://bucket/run/checkpoints`.

        `read_only` promises that nothing there changes, locks and clean-up included. The newest `keep_last_n` steps are
        kept, and every `keep_every_n_steps` for good. Nothing is committed or removed unless `lease` proves at that
        moment that it is held; the primary process alone has it, and None where no other process can write.
        """
        super().__init__(cfg)
        self.directory: Path | str = str(directory) if is_address(directory) else Path(directory).resolve()
        self.lease = lease
        self.keep_last_n = keep_last_n
        self.keep_every_n_steps = keep_every_n_steps
        self.on_event: CheckpointCallback = on_event or (lambda kind, fields: None)
        self.read_only = read_only

    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Returns the committed steps, oldest first. A save that didn't finish never counts."""

    def latest(self) -> int | None:
        """Returns the newest committed step, None where there is none."""
        return max(self.steps(), default=None)

    def location(self, step: int) -> str:
        """Returns the path or address of a step."""
        return f"{self.directory}/{step}"

    @abc.abstractmethod
    def save(
        self,
        step: int,
        *,
        params: Any,
        opt: Mapping[str, Any],
        state: Any = None,
        data: Any = None,
        meta: Mapping[str, Any] | None = None,
        provisional: bool = False,
        quick: bool = False,
    ) -> bool:
        """Starts saving; once it returns, the arrays may be donated. False if this step is saved already.

        A `quick` save, asked for where `due` says so, goes to the places of the checkpointer's own alone.

        A `provisional` step doesn't count before `commit`; the next `save`, `wait` or `close` drops one that is not
        committed by then, and so does the end of the process. Raises CheckpointSaveError for an earlier save that
        failed; called again, it saves this one.
        """

    def is_writing(self) -> bool:
        """Whether a save is still under way, so that another would have to wait long for it. All processes call."""
        return False

    def due(self, step: int) -> bool:
        """Whether the checkpointer wants a `quick` save of a step that the run's policy has none for."""
        del step
        return False

    @abc.abstractmethod
    def commit(self, step: int) -> None:
        """Has a provisional save count once all of it is written; does nothing for any other step. Doesn't wait.

        The trainer calls it when the step after has shown that the state can be gone on from. Raises
        CheckpointSaveError, unless `save` or `wait` does so later.
        """

    @abc.abstractmethod
    def restore(self, abstract: Mapping[str, Any], *, step: int | None = None) -> Restored | None:
        """Returns the asked items, `{"params": tree}` of ShapeDtypeStructs with shardings, bit for bit as saved.

        Without `step`: the newest sound one, each damaged one passed over reported as an event; None where nothing was
        ever committed. With `step`: that one or an error. Raises CheckpointError subclasses.
        """

    def go_back(self, step: int) -> list[str]:
        """Makes the run continue from a committed `step`: later ones are moved aside, not deleted; returns where.

        Called once that step is restored. Raises CheckpointError where the checkpointer has no way to.
        """
        if self.latest() in (step, None):
            return []
        message = f"{type(self).__name__} can't set aside the checkpoints after step {step}; move them out of the way"
        raise CheckpointError(message)

    @abc.abstractmethod
    def wait(self) -> None:
        """Returns once no save is under way; one still provisional is dropped. Raises CheckpointSaveError, once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Waits, then releases threads; raises as `wait` does."""
