"""What the drivers of object stores have in common: addresses, one client, the missing extra, and lost answers."""

import abc
import threading
from typing import Any

from kanawa.contracts import ObjectMissingError, Storage, StorageConflictError, StorageError, StorageRefusedError


class PastTheEndError(StorageError):
    """A range begins where the object has ended: of a whole one it is damage, and no failure of the service."""


class BucketStorage(Storage):
    """Objects of a bucket below a prefix, by a client that is made when it is first needed, and can be shared."""

    def __init__(self, cfg: Any, *, address: str) -> None:
        super().__init__(cfg, address=address)
        self.bucket, self._prefix = bucket_and_prefix(address)
        self._lock = threading.Lock()
        self._opened: Any = None

    @abc.abstractmethod
    def _open(self) -> Any:
        """Returns a client, safe to use from several threads."""

    @abc.abstractmethod
    def _condition(self, version: str | None) -> dict[str, Any]:
        """Returns the arguments of `_put` that have the service refuse where another version is there, or any."""

    @abc.abstractmethod
    def _put(self, key: str, data: bytes | bytearray | memoryview, **condition: Any) -> str:
        """Writes an object and returns its version; raises StorageConflictError where a condition doesn't hold."""

    @abc.abstractmethod
    def _get(self, key: str, start: int, size: int | None) -> bytes:
        """Returns a part of an object; raises PastTheEndError where the service refuses the range."""

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns a part of an object; see the contract."""
        if size == 0:
            return b""
        try:
            return self._get(key, start, size)
        except PastTheEndError:
            return b""

    def write(self, key: str, data: bytes | bytearray | memoryview) -> str:
        """Writes an object; the service answers once it is durable, and refuses a body cut or changed on its way."""
        return self._put(key, data)

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        """Writes under a condition that the service checks; see the contract."""
        try:
            return self._put(key, data, **self._condition(version))
        except StorageConflictError:
            return written_by_us(self, key, data)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None


def bucket_and_prefix(address: str) -> tuple[str, str]:
    """Returns a bucket and the prefix of its keys, which is empty or ends with a slash. Raises StorageRefusedError."""
    bucket, _, prefix = address.partition("://")[2].partition("/")
    if not bucket:
        scheme = address.partition(":")[0]
        message = f"{address!r} names no bucket; expected {scheme}://BUCKET/FOLDER"
        raise StorageRefusedError(message)
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def missing_extra(address: str, extra: str) -> StorageRefusedError:
    """Returns the error of a driver whose library is not installed."""
    return StorageRefusedError(f"{address}: its client is not installed: pip install 'kanawa-runtime[{extra}]'")


def written_by_us(storage: Storage, key: str, data: bytes) -> str:
    """Returns the version of an object that holds exactly `data`, after a conflict; raises StorageConflictError else.

    A conditional write whose answer was lost is sent again by the client, and then meets itself.
    """
    try:
        there, version = storage.read_version(key)
    except ObjectMissingError:
        there, version = b"", ""
    if there == data:
        return version
    message = f"{storage.address}/{key} was written by another process meanwhile"
    raise StorageConflictError(message)
