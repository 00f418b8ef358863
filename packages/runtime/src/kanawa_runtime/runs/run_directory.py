"""A run on disk: config.json, plugins.json, events.jsonl, checkpoints/STEP/ and report.html.

config.json is written last and atomically: a directory without it is not a run yet.
"""

import json
import logging
import os
import uuid
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
from kanawa.composition.saved import MissingPluginError, read_saved, recorded_plugins
from kanawa.config import Change, Config, diff, digest, parse_path, to_json
from kanawa.contracts import CheckpointError, StorageError, open_storage
from kanawa.errors import ConfigError, UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_json

from kanawa_runtime.checkpoint.agreement import of_primary
from kanawa_runtime.checkpoint.errors import may_pass
from kanawa_runtime.exit_codes import LOST
from kanawa_runtime.checkpoint.layout import EVENTS as EVENTS
from kanawa_runtime.checkpoint.roots.objects import commits_lease
from kanawa_runtime.checkpoint.tiers import RUN_ID, open_root
from kanawa_runtime.storage.durable import write_durable
from kanawa_runtime.storage.lease import StorageLease
from kanawa_runtime.storage.local import LOCK, open_folder
from kanawa_runtime.storage.mirror import Mirror, mirror_folder
from kanawa_runtime.storage.place import MARK, run_place, shown_place, stands_for
from kanawa_runtime.runs.environment_record import environment_record
from kanawa_runtime.runs.events import EventLog, EventLogError, read_kinds
from kanawa_runtime.runs.environment_record import launch_record
from kanawa_runtime.runs.tokenizer_file import ORIGIN as ORIGIN
from kanawa_runtime.runs.tokenizer_file import TOKENIZER

logger = logging.getLogger(__name__)

#: Of the layout; a change that older code would misread needs a new number.
FORMAT = 1

#: Fields that say how a run learns: using its model needs neither the rewards nor the services that they name.
OF_TRAINING = ("rollouts", "services", "gradients", "init_from")

CONFIG, PLUGINS, CHECKPOINTS, REPORT = "config.json", "plugins.json", "checkpoints", "report.html"
#: An attempt's last sign of life; batches left out of training.
ALIVE, LEFT_OUT = "alive.json", "left_out.json"
#: Of all processes, where one of them made no progress.
STACKS = "stacks"
#: Where `kanawa launch` keeps logs; it is there before the run is.
LAUNCH = "launch"
_PROBE_BYTES = 1 << 16
#: Of a run in a folder; at an address it is `checkpoints/commits.json`.
LEASE = ".lease.json"
#: With the origin of every value, the largest experiments take a megabyte.
MOST_CONFIG_BYTES = 64 * 2**20


class RunDirectoryError(UsageError):
    """A directory can't be used as this run; the message says why and what to do."""


class RunDirectory:
    """An opened run: locked for writing by process 0; other processes of its gang don't open it.

    `path` is its folder; of a run at an address, the one here that its small files pass through, and `place` is the
    address. `config` is the one of this attempt; `changes` lists where its placement differs from the last one's;
    `start_step` is known once the state is restored.
    """

    def __init__(self, path: Path, config: Config, *, is_primary: bool, address: str | None = None) -> None:
        self.path = path
        self.address = address
        self.place = address or str(path)
        self.config = config
        self.is_primary = is_primary
        self.changes: tuple[Change, ...] = ()
        self.start_step = 0
        self.lease: StorageLease | None = None
        self._mirror: Mirror | None = None
        self._events: EventLog | None = None
        self._attempt: int | None = None

    @classmethod
    def open(cls, path: Path | str, config: Config) -> "RunDirectory":
        """Creates or reopens a run, before anything expensive happens.

        Raises RunDirectoryError where it belongs to another experiment, is damaged, was
        written by a newer version, or can't be written; LeaseHeldError where another
        process writes to it.
        """
        place = run_place(path, "the run's directory")
        address = place if isinstance(place, str) else None
        folder = mirror_folder(address, "runs") if address else Path(place)
        run = cls(folder.resolve(), config, is_primary=jax.process_index() == 0, address=address)
        if run.is_primary:
            run._open_primary()
        return run

    def _open_primary(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._probe()
            self._take_lease()
            if (self.path / CONFIG).exists():
                self.changes = compare(self.path, self.config)
            else:
                _check_fresh(self.path)
            if self.changes or not (self.path / CONFIG).exists():
                self._write_records()
            if self._mirror is not None:
                self._mirror.push()
                self._mirror.start()
            else:
                (self.path / CHECKPOINTS).mkdir(exist_ok=True)
        except OSError as error:
            self._give_back()
            raise unwritable(self.place, error) from error
        except BaseException:
            self._give_back()
            raise

    def _take_lease(self) -> None:
        """Becomes the only writer, wherever others may be, and brings the files of an address here.

        Raises LeaseHeldError.
        """
        if self.address is None:
            self.lease = StorageLease(open_folder(self.path), LEASE, where=self.place)
        else:
            self.lease = commits_lease(open_storage(f"{self.address}/{CHECKPOINTS}"), self.place)
        self.lease.acquire()
        if RUN_ID not in self.lease.facts:
            identity = uuid.uuid4().hex
            self.lease.record(lambda facts: facts.update({RUN_ID: identity}))
        if self.address is not None:
            self._mirror = Mirror(self.address, self.path)
            self._mirror.pull()

    def _give_back(self) -> None:
        """Ends what `_open_primary` began, in the other order."""
        try:
            if self._mirror is not None:
                self._mirror.close()
        finally:
            if self.lease is not None:
                self.lease.release()

    def _probe(self) -> None:
        """Writes and removes a small file, so that a full or read-only disk shows now."""
        probe = self.path / f".probe.{uuid.uuid4().hex[:12]}"
        try:
            with probe.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def _write_records(self) -> None:
        record = environment_record() | {"format": FORMAT}
        write_durable(self.path / PLUGINS, json.dumps(record, indent=1).encode())
        text = json.dumps(to_json(self.config, origins=True), indent=1)
        write_durable(self.path / CONFIG, text.encode())

    @property
    def directory(self) -> str:
        """The run's path as text, for hooks and services."""
        return str(self.path)

    @property
    def checkpoints(self) -> Path | str:
        """Where the step directories are: a folder, or an address."""
        return checkpoints_of(self.path)

    @property
    def report(self) -> Path:
        """Where the run's own report goes."""
        return self.path / REPORT

    @property
    def attempt(self) -> int:
        """The number of this opening, from 1; the same in every process of a gang, which all ask for it at once."""
        if self._attempt is None:
            self._attempt = of_primary(self.events().attempt)
        return self._attempt

    def events(self) -> EventLog:
        """Returns the run's event log; in other processes than 0, one that writes nothing. Raises RunDirectoryError."""
        if self._events is None:
            try:
                mirror = self._mirror
                soon = (lambda: None) if mirror is None else mirror.push_soon
                self._events = EventLog(self.path / EVENTS if self.is_primary else None, on_durable=soon)
            except OSError as error:
                raise unwritable(self.path / EVENTS, error) from error
        return self._events

    def description(self) -> dict[str, Any]:
        """Returns what the `run_started` event says about the run."""
        return (
            environment_record()
            | launch_record()
            | {
                "run": self.place.rpartition("/")[2],
                "experiment_digest": digest(self.config, "experiment"),
                "placement_digest": digest(self.config, "placement"),
                "config_changes": [change.to_json() for change in self.changes],
            }
        )

    def meta(self) -> dict[str, Any]:
        """Returns what is saved with every checkpoint."""
        return environment_record() | {
            "experiment_digest": digest(self.config, "experiment"),
            "config_digest": digest(self.config, "all"),
            "attempt": self.attempt,
        }

    def close(self) -> None:
        """Closes the event log and releases the lease."""
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._give_back()

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except EventLogError as lost:
            if error is None:
                raise
            # What ended the run says more than what couldn't be written of it.
            logger.error("%s", lost)  # noqa: TRY400 - no traceback: the message is all


def checkpoints_of(folder: Path) -> Path | str:
    """Returns where the checkpoints of a run lie, by its folder: in it, or at the address that it stands for."""
    address = stands_for(folder)
    return folder / CHECKPOINTS if address is None else f"{address}/{CHECKPOINTS}"


def steps_of(folder: Path) -> list[int]:
    """Returns the committed steps of a run, by its folder; none where the storage doesn't tell."""
    try:
        return open_root(checkpoints_of(folder), None).steps()
    except (OSError, StorageError):
        return []


def read_config(path: Path | str, without: Collection[str] = ()) -> Config:
    """Returns a run's config; raises RunDirectoryError where there is none or it can't be read.

    The fields in `without` are left at their defaults: what they name need not be installed.
    """
    path = Path(path)
    file = path / CONFIG
    try:
        data = guarded_json(file, path, most=MOST_CONFIG_BYTES)
    except FileNotFoundError as error:
        message = f"{shown_place(path)} is not a run: it has no {CONFIG}"
        raise RunDirectoryError(message) from error
    except (OSError, UnreadableFileError) as error:
        raise _damaged(path, str(error)) from error
    _check_format(path)
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name not in without}
    try:
        return read_saved(data, _recorded_plugins(path))
    except MissingPluginError as error:
        message = f"{file} is sound, but {error}"
        raise RunDirectoryError(message) from error
    except (ConfigError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def compare(path: Path, config: Config) -> tuple[Change, ...]:
    """Returns the changes since the run's last config, of placement once it has taken a step.

    Raises RunDirectoryError, listing every change that matters, where the experiment is another
    one.
    """
    old = read_config(path)
    changes = diff(old, config)
    if digest(old, "experiment") == digest(config, "experiment"):
        return tuple(changes)
    if not _has_begun(path):
        # An attempt that failed before its first step leaves nothing of its experiment here.
        for name in (TOKENIZER, LEFT_OUT):
            (path / name).unlink(missing_ok=True)
        return tuple(changes)
    listed = [str(change) for change in changes if not _is_placement(old, change.path)]
    message = (
        f"{shown_place(path)} belongs to another experiment; its config differs (run -> asked):\n  "
        + "\n  ".join(listed)
        + "\nUse another --run directory, or ask for the values above on the left"
    )
    raise RunDirectoryError(message)


def _has_begun(path: Path) -> bool:
    """Whether a run has a checkpoint, or has taken a step."""
    if steps_of(path):
        return True
    try:
        return any(read_kinds(path / EVENTS, ("step", "checkpoint_committed")))
    except FileNotFoundError:
        return False


def _is_placement(config: Config, path: str) -> bool:
    """Whether a path lies in a field that only says where and how the experiment runs."""
    node: Any = config
    for key in parse_path(path):
        if isinstance(node, Config):
            if key in type(node).PLACEMENT:
                return True
            node = getattr(node, str(key), None)
        elif isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list | tuple) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return False
    return False


def _check_fresh(path: Path) -> None:
    """Refuses a directory that holds other files, or a run whose config.json is gone."""
    names = sorted(p.name for p in path.iterdir() if not _is_bookkeeping(p.name))
    if (any(name in (EVENTS, CHECKPOINTS) for name in names) or stands_for(path)) and steps_of(path):
        raise _damaged(path, f"{CONFIG} is missing")
    ours = (EVENTS, CHECKPOINTS, REPORT, ALIVE, STACKS, LEFT_OUT, LAUNCH)
    foreign = [n for n in names if n not in ours and not n.endswith(".partial")]
    if foreign:
        message = (
            f"{shown_place(path)} holds other files ({', '.join(foreign[:5])}) and no {CONFIG}: "
            "it is not a run. Give an empty or new directory with --run"
        )
        raise RunDirectoryError(message)


def _is_bookkeeping(name: str) -> bool:
    return name in (".lock", LEASE, LOCK, MARK, PLUGINS)


def _check_format(path: Path) -> None:
    try:
        record = guarded_json(path / PLUGINS, path, most=MOST_CONFIG_BYTES)
        layout = int(record["format"])
    except (OSError, UnreadableFileError, ValueError, KeyError, TypeError):
        # It only describes; without it config.json's own schema versions still protect.
        return
    if layout > FORMAT:
        wrote = record.get("plugins", {}).get("kanawa-runtime", "a newer version")
        message = (
            f"{path} was written by kanawa-runtime {wrote} in layout {layout}; this one "
            f"knows layout {FORMAT}. Upgrade kanawa-runtime"
        )
        raise RunDirectoryError(message)


def _recorded_plugins(path: Path) -> dict[str, str]:
    """Returns the plugin set that the run, or else its newest checkpoint, was written with; empty if neither says."""
    recorded = recorded_plugins(path)
    for step in steps_of(path)[-1:]:
        root = open_root(checkpoints_of(path), None)
        try:
            recorded = recorded or dict(root.text(step, root.manifest(step), "meta")["plugins"])
        except (OSError, ValueError, KeyError, TypeError, CheckpointError, StorageError):
            continue  # It only describes: the error tells less without it.
    return recorded


def _damaged(path: Path, reason: str) -> RunDirectoryError:
    steps = steps_of(path)
    kept = f"its checkpoints are intact (steps {steps})" if steps else "it has no checkpoint yet"
    message = (
        f"{shown_place(path)}/{CONFIG} can't be read: {reason}\n{kept}. To recover, put back the run's {CONFIG} "
        "from a backup, or delete it and write it anew: "
        f"kanawa show EXPERIMENT --json > {path / CONFIG}"
    )
    return RunDirectoryError(message)


def unwritable(path: Path | str, error: OSError) -> RunDirectoryError:
    """Returns the error for what can't be written before the first step, worth another start unless no start helps."""
    message = (
        f"{path} can't be written: {error.strerror or error}; nothing was started, and nothing is lost. "
        "Free space, fix its permissions, or choose another --run directory"
    )
    refused = RunDirectoryError(message)
    if may_pass(error):
        refused.exit_code = LOST
    return refused
