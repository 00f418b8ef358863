"""Orbax's public handlers: flat dictionaries of arrays, and JSON, to a folder and back.

A handler copies what this process holds, writes it on threads of its own, and re-shards on reading. It neither renames
folders nor waits for other processes: the step's commit file and the agreement of the processes do that here. Importing
orbax takes seconds, so that happens at the first save or restore: a plan or `show` doesn't import it.
"""

import asyncio
import errno
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from kanawa_runtime.checkpoint.structure import empty_array, placed

logger = logging.getLogger(__name__)


class _OneErrorOnce(logging.Filter):
    """Drops errors that orbax logs, with a traceback on each of its threads, and raises as well.

    Also what asyncio logs of writes that failed beside the one whose error is raised: of several, orbax (0.12.8)
    retrieves only the first error, and Python logs the others when it collects them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[2] if record.exc_info else None
        files = [record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))]
        is_late = record.name != "asyncio" or "exception was never retrieved" in record.getMessage()
        if record.levelno < logging.ERROR or not is_late or not any("orbax" in file for file in files):
            return True
        logger.debug("orbax: %s", record.getMessage(), exc_info=record.exc_info)
        return False


_FILTER = _OneErrorOnce()


class _NoLateWrites:
    """Shows what can't be raised as `before` does, but for writes that report to an event loop that is closed.

    Of several writes that fail, orbax (0.12.8) raises the first error and closes the loop; tensorstore then has Python
    print an error for each of the others.
    """

    def __init__(self, before: Callable[..., object]) -> None:
        self._before = before

    def __call__(self, shown: Any) -> None:
        """Shows an error; the outermost function of a late write's is the loop's own."""
        place = shown.exc_traceback
        is_late = place is not None and place.tb_frame.f_code.co_name == "call_soon_threadsafe"
        if is_late and str(shown.exc_value) == "Event loop is closed":
            logger.debug("a write ended after its save had failed", exc_info=shown.exc_value)
        else:
            self._before(shown)


class ArrayStore:
    """Writes step folders that `make_folders` made. All processes `start` and `wait`, then the first one finalizes."""

    def __init__(self, timeout_seconds: int) -> None:
        self._orbax = _orbax()
        self._timeout_seconds = timeout_seconds
        self._handler = self._orbax.PyTreeCheckpointHandler()
        self._items: list[str] = []
        self._writes: list[Any] = []

    def start(self, folder: Path, arrays: Mapping[str, Mapping[str, jax.Array]]) -> None:
        """Copies the arrays off the devices and returns; orbax keeps writing to `folder/ITEM`."""
        self._items = [item for item, leaves in arrays.items() if leaves]
        self._writes = []
        for item in self._items:
            arguments = self._orbax.args.PyTreeSave(dict(arrays[item]))
            self._writes += _result_of(self._handler.async_save(_path(folder, item), args=arguments)) or []

    def wait(self) -> None:
        """Returns once all of this process's arrays are written; raises the first error."""
        writes, self._writes = self._writes, []
        errors = []
        for write in writes:
            try:
                write.result(timeout=self._timeout_seconds)
            except Exception as error:  # noqa: BLE001 - raised below, once the other items are written
                errors.append(error)
        if errors:
            raise errors[0]

    def finalize(self, folder: Path, texts: Mapping[str, Any]) -> None:
        """Merges what the processes have written, and writes the JSON items."""
        for item in self._items:
            self._handler.finalize(_path(folder, item))
        for name, value in texts.items():
            self._orbax.JsonCheckpointHandler().save(_path(folder, name), args=self._orbax.args.JsonSave(value))

    def close(self) -> None:
        """Releases orbax's threads."""
        self._handler.close()


def check_room(directory: Path, trees: Mapping[str, Mapping[str, jax.Array]]) -> None:
    """Raises the OSError of a full disk where what this process writes has no room; compression may spare a tenth.

    Before anything is written: what fails later has to be removed again.
    """
    arrays = [x for leaves in trees.values() for x in leaves.values()]
    needed = sum(shard.data.nbytes for x in arrays for shard in x.addressable_shards if shard.replica_id == 0)
    try:
        disk = shutil.disk_usage(directory)
    except FileNotFoundError:  # the first process makes it
        return
    # Some network file systems know of no size.
    if disk.total and needed > disk.free:
        full = os.strerror(errno.ENOSPC)
        raise OSError(errno.ENOSPC, f"{full}: a save takes {needed:,} bytes, and {disk.free:,} are free")


def make_folders(folder: Path, items: Iterable[str], texts: Iterable[str]) -> None:
    """Makes what `start` and `finalize` write to. The first process calls, before any other starts."""
    for name in texts:
        (folder / name).mkdir()
    for item in items:
        # The inner one's name is orbax's: its other processes wait minutes for it where the first one doesn't start.
        (folder / item / "array_metadatas").mkdir(parents=True)


def read_arrays(folder: Path, item: str, leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns the arrays of one item in the shardings of the abstract `leaves`; raises whatever orbax raises."""
    asked = placed(leaves)
    stored = {path: leaf for path, leaf in asked.items() if 0 not in leaf.shape}
    arrays = {path: empty_array(leaf) for path, leaf in asked.items() if 0 in leaf.shape}
    if stored:
        orbax = _orbax()
        handler = orbax.PyTreeCheckpointHandler()
        arguments = orbax.checkpoint_utils.construct_restore_args(stored)
        arrays |= handler.restore(
            _path(folder, item),
            args=orbax.args.PyTreeRestore(item=stored, restore_args=arguments),
        )
    return arrays


def read_text(folder: Path, name: str) -> Any:
    """Returns one JSON item; raises whatever orbax raises."""
    orbax = _orbax()
    return orbax.JsonCheckpointHandler().restore(_path(folder, name), args=orbax.args.JsonRestore())


def _orbax() -> Any:
    """Returns orbax, which takes seconds to import, its own errors logged once."""
    from orbax import checkpoint as orbax

    if not isinstance(sys.unraisablehook, _NoLateWrites):
        sys.unraisablehook = _NoLateWrites(sys.unraisablehook)
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_FILTER)
    return orbax


def _path(folder: Path, name: str) -> Any:
    """Returns a path as orbax takes it."""
    from etils import epath

    return epath.Path(folder) / name


def _result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns a coroutine's result, run on a thread of its own: in a notebook this one has a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
