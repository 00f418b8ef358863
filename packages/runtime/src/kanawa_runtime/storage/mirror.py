"""The local folder that stands for a run at an address: its small files, brought here and updated there.

Logs are appended to and read at any place, which object stores offer neither of; so a run writes them here, and what
changed goes to the address every few seconds. Checkpoints don't pass through it.
"""

import hashlib
import logging
import re
import tempfile
import threading
import zlib
from pathlib import Path

from kanawa.contracts import ObjectMissingError, Storage, StorageConflictError, StorageError, open_storage
from kanawa.local_path import cache_folder, local_path

from kanawa_runtime.storage.durable import write_durable
from kanawa_runtime.storage.place import MARK, address_of

logger = logging.getLogger(__name__)

PUSH_SECONDS = 10.0
#: A longer file goes in parts, so that a log of gigabytes isn't sent whole for every line.
PART_BYTES = 8 * 2**20
_PART = re.compile(r"(?P<name>.+)\.part-(?P<number>[0-9]{5})")
_OWN = ("checkpoints/",)


class Mirror:
    """The small files of one run. `pull` and `push` raise StorageError; the background says so once and tries again."""

    def __init__(self, address: str, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self.address = address
        self.folder = folder
        self.storage: Storage = open_storage(address)
        self._part_bytes = part_bytes
        self._versions: dict[str, str] = {}
        self._pushed: dict[str, tuple[tuple[int, int], list[int]]] = {}
        self._unsure: dict[str, set[bytes]] = {}
        self._lock = threading.Lock()
        self._ended, self._wanted = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_lost = False

    def pull(self) -> None:
        """Brings every small file here; one that continues what is there already is kept: it was not sent yet.

        Where none is there, the run that was here is no more: its files go out of the way of a new one.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MARK).write_text(self.address)
        files: dict[str, list[str]] = {}
        for key in sorted(self.storage.sizes()):
            if not key.startswith(_OWN) and not Path(key).name.startswith("."):
                part = _PART.fullmatch(key)
                files.setdefault(part["name"] if part else key, []).append(key)
        if not files:
            self._put_aside()
        for name, keys in files.items():
            # Parts are newer than a whole file of the name, which a crash may have left beside them.
            parts = [key for key in keys if key != name] or keys
            content = b"".join(self._fetched(key) for key in parts)
            path = self.folder / name
            if not (path.is_file() and path.read_bytes().startswith(content)):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_durable(path, content)

    def push(self) -> None:
        """Sends what changed since the last time. Raises StorageConflictError where another process writes there."""
        with self._lock:
            for path in sorted(self.folder.rglob("*")):
                name = path.relative_to(self.folder).as_posix()
                hidden = any(part.startswith(".") for part in path.relative_to(self.folder).parts)
                if path.is_file() and not hidden and not name.startswith(_OWN) and not name.endswith(".partial"):
                    self._push(name, path)

    def start(self) -> None:
        """Begins to push in the background."""
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def push_soon(self) -> None:
        """Has the background push now; returns at once."""
        self._wanted.set()

    def close(self) -> None:
        """Pushes for the last time; raises StorageError where that fails."""
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self._is_lost:
            self.push()
        self.storage.close()

    def _fetched(self, key: str) -> bytes:
        try:
            data, self._versions[key] = self.storage.read_version(key)
        except ObjectMissingError:
            return b""
        return data

    def _push(self, name: str, path: Path) -> None:
        try:
            state = (path.stat().st_mtime_ns, path.stat().st_size)
            before, sent = self._pushed.get(name, ((0, -1), []))
            if state == before:
                return
            data = path.read_bytes()
        except FileNotFoundError:
            return
        pieces = [data[at : at + self._part_bytes] for at in range(0, len(data), self._part_bytes)] or [b""]
        sums = [zlib.crc32(piece) for piece in pieces]
        for number, (piece, total) in enumerate(zip(pieces, sums, strict=True)):
            key = name if len(pieces) == 1 else f"{name}.part-{number:05d}"
            if len(pieces) == 1 or number >= len(sent) or len(sent) == 1 or sent[number] != total:
                self._replace(key, piece)
        if len(pieces) > 1 and name in self._versions:
            self.storage.delete([name])
            del self._versions[name]
        self._pushed[name] = (state, sums)

    def _replace(self, key: str, data: bytes) -> None:
        try:
            self._send(key, data, self._versions.get(key))
        except StorageConflictError:
            there, version = self.storage.read_version(key)
            if hashlib.sha256(there).digest() not in self._unsure.get(key, ()):
                raise
            # Ours, taken for failed when every answer to it was lost.
            self._send(key, data, version)

    def _send(self, key: str, data: bytes, version: str | None) -> None:
        try:
            self._versions[key] = self.storage.replace(key, data, version)
        except StorageConflictError:
            raise
        except StorageError:
            self._unsure.setdefault(key, set()).add(hashlib.sha256(data).digest())
            raise
        self._unsure.pop(key, None)

    def _put_aside(self) -> None:
        # Its events, tokenizer or left-out batches would be taken for those of a new run at this address.
        left = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        if left:
            aside = Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.removed-", dir=self.folder.parent))
            for path in left:
                path.rename(aside / path.name)
            logger.warning("%s holds no run; local files of an earlier one are moved to %s", self.address, aside)

    def _run(self) -> None:
        failing = False
        while not self._ended.is_set():
            self._wanted.wait(PUSH_SECONDS)
            self._wanted.clear()
            if self._ended.is_set():
                return
            try:
                self.push()
            except StorageConflictError as error:
                self._is_lost = True
                logger.error("%s is written by another process; nothing more is sent there: %s", self.address, error)
                return
            except (StorageError, OSError) as error:
                if not failing:
                    logger.warning("%s takes no files now; they remain in %s: %s", self.address, self.folder, error)
                failing = True
            else:
                failing = False


def mirror_folder(address: str, purpose: str) -> Path:
    """Returns the folder that stands for an address on this machine: one for writing, another for reading."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", address.rpartition("/")[2]) or "run"
    return cache_folder() / purpose / f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


def readable_folder(text: str | Path) -> Path:
    """Returns a run's folder as it is, or for an address one with the small files that lie there now.

    Raises StorageError where they can't be read.
    """
    address = address_of(text)
    if address is None:
        return Path(text)
    if address.startswith("file:"):
        return local_path(text)
    mirror = Mirror(address, mirror_folder(address, "runs-read"))
    try:
        mirror.pull()
    finally:
        mirror.storage.close()
    return mirror.folder
