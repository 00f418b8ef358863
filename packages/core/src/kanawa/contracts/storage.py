"""Whole objects under keys, at one address: a folder, a bucket; where a run is stored.

A component of kind "storages" is named by the scheme of its addresses: `s3` opens `s3://bucket/prefix`. A storage has
no directories, no renaming and no appending, for object stores have none; what they have, and commits need, is a write
that succeeds only if the object hasn't changed since.
"""

import abc
import re
from collections.abc import Callable, Iterable
from typing import Any

from kanawa.config import Configurable
from kanawa.errors import RETRY, KanawaError, UsageError, did_you_mean
from kanawa.plugins import component, host

#: A scheme of two letters at least, for C:/ is a drive.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)


class StorageError(KanawaError):
    """A storage could not do what was asked; it may be able to later."""

    exit_code = RETRY


class ObjectMissingError(StorageError):
    """There is no object under the key."""

    exit_code = KanawaError.exit_code


class StorageConflictError(StorageError):
    """Somebody else has written the object since the version that the caller knew; nothing was changed."""

    exit_code = KanawaError.exit_code


class StorageRefusedError(StorageError, UsageError):
    """No later try helps: rights, a bucket that does not exist, an address that is none."""

    exit_code = UsageError.exit_code


class Storage(Configurable):
    """Objects under keys such as `checkpoints/6/manifest.json`; safe to use from several threads.

    Retries what a moment may mend, itself. Every method raises StorageError or a subclass.
    """

    def __init__(self, cfg: "Storage.Config", *, address: str) -> None:
        """Takes the address, without a slash at its end. Opens nothing that could fail without a network."""
        super().__init__(cfg)
        self.address = address

    @abc.abstractmethod
    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes from `start`, or all; fewer only where the object ends. Raises ObjectMissingError."""

    @abc.abstractmethod
    def read_version(self, key: str) -> tuple[bytes, str]:
        """Returns an object and the version that `replace` takes. Raises ObjectMissingError."""

    @abc.abstractmethod
    def write(self, key: str, data: bytes | bytearray | memoryview) -> str:
        """Writes a whole object, whatever was there; returns its version. It outlives a loss of power from here on."""

    @abc.abstractmethod
    def replace(self, key: str, data: bytes, version: str | None) -> str:
        """Writes where the object still has this version (None: where there is none); returns the new one.

        Of several writers that know the same version exactly one succeeds. Raises StorageConflictError.
        """

    @abc.abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Returns the bytes of every object whose key begins with `prefix`; keys may be listed in any order."""

    @abc.abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; those that are not there are no error."""

    def copy(self, source: str, target: str) -> None:
        """Copies an object under another key."""
        self.write(target, self.read(source))

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Releases connections and threads."""


def is_address(text: object) -> bool:
    """Returns whether a text is written as an address, such as `s3://bucket/run`, and not as a path."""
    return _ADDRESS.match(str(text)) is not None


def knows_address(text: object) -> bool:
    """Returns whether a text is an address of a scheme that an installed package speaks."""
    match = _ADDRESS.match(str(text))
    return match is not None and match["scheme"].lower() in _schemes()


def _schemes() -> list[str]:
    return sorted(state.name for state in host().components("storages") if state.state.usable)


def open_storage(address: str) -> Storage:
    """Returns the storage at an address; raises UsageError where no installed package speaks its scheme."""
    match = _ADDRESS.match(address)
    known = _schemes()
    if match is None:
        message = f"{address!r} is no address; expected one such as {known[0] if known else 's3'}://bucket/folder"
        raise UsageError(message)
    scheme = match["scheme"].lower()
    if scheme not in known:
        message = (
            f"{address}: no installed package speaks {scheme}://{did_you_mean(scheme, known)}. Mount the storage and "
            "give the folder that it appears as, or install a package with a component of kind storages for it"
        )
        raise UsageError(message)
    # An address has no place for a distribution: of several claimants Kanawa's own is meant.
    kind = component("storages", scheme, asker="kanawa")
    opened: Storage = kind.Config().build(address=f"{scheme}://{match['rest'].rstrip('/')}")
    return opened


class LeaseHeldError(UsageError):
    """A living process holds the lease; nothing was changed."""


class LeaseLostError(KanawaError):
    """Another process has taken the lease over: this one may write no more, and must end."""


class Lease(abc.ABC):
    """The right to write to a run, held by one process at a time; the higher token is the newer holder's."""

    @property
    @abc.abstractmethod
    def token(self) -> int:
        """The fencing token, from 1; what is written carries it."""

    @property
    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """What was last recorded with the lease: JSON that only its holder changes."""

    @abc.abstractmethod
    def record(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Applies `change` to the facts, in one write that fails for all but the holder. Raises LeaseLostError."""

    @abc.abstractmethod
    def check(self) -> None:
        """Proves that the lease is held. Raises LeaseLostError."""
