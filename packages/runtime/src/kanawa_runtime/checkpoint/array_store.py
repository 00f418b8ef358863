"""Orbax behind a narrow door: flat dictionaries of arrays, and JSON, to a directory and back.

Orbax writes what processes hold, in parallel and in the background, and re-shards on reading. It
has no checksum on array data and no opinion on which step is sound; both live next door. It takes
seconds to import, so that happens at the first save or restore: a plan or `show` needs none of it.
"""

import contextlib
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from kanawa_runtime.checkpoint.structure import empty_array, placed

logger = logging.getLogger(__name__)


class _OneErrorOnce(logging.Filter):
    """Keeps orbax from logging, with a traceback on each of its threads, what it raises as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR or "orbax" not in record.pathname:
            return True
        logger.debug("orbax: %s", record.getMessage(), exc_info=record.exc_info)
        return False


class _LateErrors(logging.Filter):
    """Keeps asyncio from logging what writes of orbax's raised beside the one that a failed save tells.

    Where several fail, orbax (0.12.8) asks for the first one's error alone. Python logs the others, tracebacks and all,
    whenever it collects them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[2] if record.exc_info else None
        files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))
        if "exception was never retrieved" not in record.getMessage() or not any("orbax" in file for file in files):
            return True
        logger.debug("orbax: %s", record.getMessage(), exc_info=record.exc_info)
        return False


_FILTER = _OneErrorOnce()
_LATE = _LateErrors()
#: Writes of one save that can fail on their own, and more.
_MOST_FAILURES = 64
#: For the threads of a save that has failed to end, where the storage lets them.
_MOST_SECONDS = 10.0


class ArrayStore:
    """Writes step directories asynchronously. All processes of a run make the same calls."""

    def __init__(self, items: tuple[str, ...], texts: tuple[str, ...], timeout_seconds: int) -> None:
        orbax = _orbax()
        self._orbax = orbax
        handlers: dict[str, Any] = {item: orbax.PyTreeCheckpointHandler() for item in items}
        handlers |= {text: orbax.JsonCheckpointHandler() for text in texts}
        self._checkpointer = orbax.AsyncCheckpointer(
            orbax.CompositeCheckpointHandler(**handlers),
            async_options=orbax.options.AsyncOptions(timeout_secs=timeout_seconds, barrier_sync_fn=self._met),
        )
        self._begun = threading.Event()
        self._refused = False

    def start(self, folder: Path, arrays: Mapping[str, Mapping[str, jax.Array]], texts: Mapping[str, Any]) -> None:
        """Copies the arrays off the devices and returns; writing goes on in the background."""
        items: dict[str, Any] = {
            item: self._orbax.args.PyTreeSave(dict(leaves)) for item, leaves in arrays.items() if leaves
        }
        items |= {name: self._orbax.args.JsonSave(value) for name, value in texts.items()}
        self._begun.clear()
        self._refused = False
        with self._failing_once():
            self._checkpointer.save(folder, args=self._orbax.args.Composite(**items))

    def all_have_begun(self) -> None:
        """Lets the save meet the other processes, each of which has begun it."""
        self._begun.set()

    def abandon(self, *, has_folder: bool) -> None:
        """Ends the save that another process could not begin, and would never meet; raises nothing of it.

        `has_folder` says that the first process makes the folder, which the others wait for.
        """
        self._refused = True
        self._begun.set()
        if not has_folder:
            _cancel_waiting()
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - the refusal is raised, and says more
            logger.debug("orbax: the save that another process refused: %s", error)

    def _met(self, *, key: str, timeout_ms: int) -> None:
        """Has orbax's thread meet those of the other processes, once it is known that all of them will come.

        Orbax's own barrier would keep it, and the end of a run, for `timeout_seconds` where one of them never began.
        """
        if not self._begun.wait(timeout_ms / 1000) or self._refused:
            message = "another process did not begin this save"
            raise RuntimeError(message)
        from orbax.checkpoint import multihost

        multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    def wait(self) -> None:
        """Returns once the directory has its final name; raises what went wrong in the background."""
        with self._failing_once():
            self._checkpointer.wait_until_finished()

    def close(self) -> None:
        """Releases orbax's threads."""
        self._checkpointer.close()

    @contextlib.contextmanager
    def _failing_once(self) -> Iterator[None]:
        """Has a save that fails leave nothing of its failure to the next one.

        Orbax (0.12.8) keeps each write of metadata that failed, and raises one of them at each later save or wait.
        """
        try:
            with _none_left_waiting():
                yield
        except BaseException:
            for _ in range(_MOST_FAILURES):
                try:
                    self._checkpointer.wait_until_finished()
                except Exception:  # noqa: BLE001 - the first error is raised, and says more
                    logger.debug("orbax: the same save", exc_info=True)
                else:
                    break
            raise


def read_arrays(folder: Path, item: str, leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns the arrays of one item in the shardings of the abstract `leaves`; raises whatever orbax raises."""
    asked = placed(leaves)
    stored = {path: leaf for path, leaf in asked.items() if 0 not in leaf.shape}
    arrays = {path: empty_array(leaf) for path, leaf in asked.items() if 0 in leaf.shape}
    if stored:
        from etils import epath  # type: ignore[import-untyped]

        orbax = _orbax()
        handler = orbax.PyTreeCheckpointHandler()
        arguments = orbax.checkpoint_utils.construct_restore_args(stored)
        arrays |= handler.restore(
            epath.Path(folder) / item,
            args=orbax.args.PyTreeRestore(item=stored, restore_args=arguments),
        )
    return arrays


def read_text(folder: Path, name: str) -> Any:
    """Returns one JSON item; raises whatever orbax raises."""
    from etils import epath

    orbax = _orbax()
    return orbax.JsonCheckpointHandler().restore(epath.Path(folder) / name, args=orbax.args.JsonRestore())


def _orbax() -> Any:
    """Returns orbax, which takes seconds to import, with its own errors as one of ours."""
    from orbax import checkpoint as orbax

    logging.getLogger("absl").addFilter(_FILTER)
    logging.getLogger("asyncio").addFilter(_LATE)
    if not isinstance(sys.unraisablehook, _LateFutures):
        sys.unraisablehook = _LateFutures(sys.unraisablehook)
    _ask_for_no_metrics()
    return orbax


@contextlib.contextmanager
def _none_left_waiting() -> Iterator[None]:
    """Ends orbax's threads where a save fails."""
    try:
        yield
    except BaseException:
        _cancel_waiting()
        raise


def _cancel_waiting() -> None:
    """Ends the threads of orbax's that wait for the others of a save.

    Each item's waits for the folder to be made; where that fails nobody tells them (orbax 0.12.8), and they keep the
    arrays, and the process from ending, for five minutes. Can go once a failed `AsyncCheckpointer` cancels them.
    """
    # What those threads were to run is never begun, of which Python warns once it is collected.
    warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)
    # Private names: where they moved, the test of it says so.
    with contextlib.suppress(ImportError, AttributeError):
        from orbax.checkpoint._src.futures import future

        threads = [each for each in threading.enumerate() if isinstance(each, future._SignalingThread)]  # noqa: SLF001
        for thread in threads:
            if hasattr(thread, "cancel"):
                thread.cancel()
            else:
                # Up to orbax 0.12.2 nothing cancels one: what it would run, once it is told, is taken from it.
                thread._target = None
            future.set_signals(thread._receive_signals, operation_id=thread._operation_id)  # noqa: SLF001
        deadline = time.monotonic() + _MOST_SECONDS
        for thread in threads:
            # Those that write already would make the folder again that is about to be removed.
            threading.Thread.join(thread, max(0.0, deadline - time.monotonic()))


def _ask_for_no_metrics() -> None:
    """Keeps orbax from asking tensorstore for its metrics, which it does several times a save to log a rate.

    What tensorstore (0.1.86) returns there is never freed, not even by the collector: 26 KiB a save. Can go once
    `tensorstore.experimental_collect_matching_metrics` leaves nothing behind.
    """
    # Private, so it may move: then memory leaks again, and the test of it says so.
    with contextlib.suppress(ImportError):
        from orbax.checkpoint._src.serialization import tensorstore_utils

        tensorstore_utils.get_tensorstore_raw_bytes = lambda *direction: 0


class _LateFutures:
    """Keeps one traceback away: where one write of many fails, orbax closes its event loop without waiting for others.

    Their futures then come, on threads of tensorstore, to a loop that is closed, and each prints a traceback (orbax
    0.11). That the save failed is raised besides.
    """

    def __init__(self, otherwise: Callable[[Any], Any]) -> None:
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        if unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed":
            logger.debug("a write came to an end after its save had failed")
            return
        self._otherwise(unraisable)
