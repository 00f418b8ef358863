"""Folders as a storage: `file:///mnt/run`, and `ram:` for memory that outlives the process, though not the machine."""

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kanawa.contracts import ObjectMissingError, Storage, StorageConflictError, StorageError, StorageRefusedError
from kanawa.guarded_read import UnreadableFileError, guarded_open

from kanawa_runtime.storage.durable import sync_directory, write_durable

LOCK = ".versions.lock"
#: It is held for one small write; a process that was suspended there holds it until it continues or dies.
_LOCK_SECONDS = 5.0
_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_REFUSED = {errno.EACCES, errno.EPERM}


class LocalStorage(Storage):
    """Keys are paths below a folder; an object is there whole or not at all, after a loss of power too."""

    def __init__(self, cfg: Any, *, address: str) -> None:
        super().__init__(cfg, address=address)
        self.root = Path(address.partition("://")[2])
        self.survives_power_loss = True
        self.makes_parents = False

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns a part of a file; see the contract."""
        with _storage_errors(self._path(key)), guarded_open(self._path(key)) as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def read_version(self, key: str) -> tuple[bytes, str]:
        """Returns a file and the digest of its content."""
        data = self.read(key)
        return data, _version(data)

    def write(self, key: str, data: bytes | bytearray | memoryview, *, synced: bool = True) -> str:
        """Replaces a file; see the contract. Unless `synced`, a loss of power may undo it, or leave nothing."""
        path = self._path(key)
        with _storage_errors(path):
            self._make(path.parent)
            write_durable(path, data, synced=synced and self.survives_power_loss)
        return _version(data) if len(data) < 1 << 20 else ""

    def replace(self, key: str, data: bytes, version: str | None, *, synced: bool = True) -> str:
        """Replaces a file while no other process can; see the contract."""
        with self.alone():
            try:
                there: str | None = self.read_version(key)[1]
            except ObjectMissingError:
                there = None
            if there is None and version is not None:
                message = f"{self._path(key)} has vanished"
                raise ObjectMissingError(message)
            if there != version:
                message = f"{self._path(key)} was written by another process meanwhile"
                raise StorageConflictError(message)
            return self.write(key, data, synced=synced)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Returns the bytes of every file whose key begins with `prefix`."""
        sizes = {}
        start = self._path(prefix.rpartition("/")[0])
        with _storage_errors(start):
            for folder, _, names in os.walk(start):
                for name in names:
                    path = Path(folder, name)
                    key = path.relative_to(self.root).as_posix()
                    if key.startswith(prefix) and not name.endswith(".partial") and name != LOCK:
                        with contextlib.suppress(FileNotFoundError):
                            sizes[key] = path.stat().st_size
        return sizes

    def delete(self, keys: Iterable[str]) -> None:
        """Removes files, and the folders that become empty."""
        for key in keys:
            path = self._path(key)
            with _storage_errors(path):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    while path.parent != self.root:
                        path = path.parent
                        path.rmdir()

    def _path(self, key: str) -> Path:
        return self.root / key

    def _make(self, folder: Path) -> None:
        """Makes a folder, its name durable in the one above."""
        if folder.is_dir():
            return
        if folder == self.root:
            # Else not: where a mount was lost, what is written under its name is lost once it is back.
            if self.makes_parents:
                folder.mkdir(parents=True, exist_ok=True)
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        if self.survives_power_loss:
            sync_directory(folder.parent)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from replacing anything here; a process that is stopped in it keeps them waiting."""
        with _storage_errors(self.root):
            self._make(self.root)
            descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = f"{self.root / LOCK} is held by another process, which may be stopped"
                        raise StorageError(message) from None
                    time.sleep(0.01)
                except OSError as error:  # a network's file system whose lock service is away
                    message = f"{self.root / LOCK} can't be locked: {error.strerror or error}"
                    raise StorageError(message) from error
            yield
        finally:
            os.close(descriptor)


class RamStorage(LocalStorage):
    """`ram:///name`: a folder of /dev/shm. It survives a killed process, not a restart of the machine."""

    class Config(LocalStorage.Config):
        pass

    def __init__(self, cfg: Any, *, address: str) -> None:
        super().__init__(cfg, address=address)
        name = address.partition("://")[2].strip("/")
        memory = Path("/dev/shm")  # noqa: S108 - it is the point: memory under a name
        if not memory.is_dir():
            message = f"{address}: this machine has no /dev/shm; use file:// and a folder in memory"
            raise StorageRefusedError(message)
        self.root = memory / f"kanawa-{os.getuid()}" / name
        self.survives_power_loss = False
        self.makes_parents = True


def open_folder(folder: Path) -> LocalStorage:
    """Returns the storage of a local folder."""
    opened: LocalStorage = LocalStorage.Config().build(address=f"file://{folder}")
    return opened


def _version(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turns the system's errors into StorageErrors."""
    try:
        yield
    except UnreadableFileError as error:
        raise StorageRefusedError(str(error)) from error
    except OSError as error:
        message = f"{error.filename or path}: {error.strerror or error}"
        kind: type[StorageError] = StorageError
        if error.errno in _ABSENT:
            kind = ObjectMissingError
        elif error.errno in _REFUSED:
            kind = StorageRefusedError
        raise kind(message) from error
