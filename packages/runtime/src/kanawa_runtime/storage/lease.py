"""Who may write to a run: a lease with a fencing token, in one object that only conditional writes change.

Taking the lease over raises the token in the same write that makes every write of the last holder fail, so a process
that was suspended for an hour can't commit anything afterwards. Clocks of machines are never compared: a
newcomer watches whether the holder renews.
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kanawa.contracts import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    ObjectMissingError,
    Storage,
    StorageConflictError,
    StorageError,
)

from kanawa_runtime.storage.local import LocalStorage

logger = logging.getLogger(__name__)

#: A holder renews so often, and is taken for dead after so long without; a refusal takes one renewal to be sure of.
RENEW_SECONDS = float(os.environ.get("KANAWA_LEASE_RENEW_SECONDS", "2"))
TTL_SECONDS = float(os.environ.get("KANAWA_LEASE_SECONDS", "15"))
_POLLS_PER_RENEWAL = 8


class StorageLease(Lease):
    """A lease under one key of a storage, renewed in the background once taken. `facts` travel with it."""

    def __init__(
        self,
        storage: Storage,
        key: str,
        *,
        where: str = "",
        holder: Mapping[str, Any] | None = None,
        ttl_seconds: float = TTL_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
        lowest_token: Callable[[], int] = lambda: 0,
    ) -> None:
        self.storage, self.key, self.where = storage, key, where or storage.address
        self._holder = dict(holder or this_process())
        self._ttl, self._renewal = ttl_seconds, renew_seconds
        self._lowest_token = lowest_token
        self._lock = threading.RLock()
        self._version: str | None = None
        self._record: dict[str, Any] = {}
        self._lost: LeaseLostError | None = None
        self._fails = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> int:
        """The fencing token; higher than that of every holder before."""
        return int(self._record.get("token", 0))

    @property
    def facts(self) -> dict[str, Any]:
        """What was last recorded with the lease."""
        return dict(self._record.get("facts", {}))

    def acquire(self) -> int:
        """Takes the lease and returns its token; raises LeaseHeldError where a living process holds it."""
        there, version = self._read()
        if there is not None and there.get("holder") and not self._is_dead(there["holder"]):
            if self._is_neighbour(there["holder"]):
                raise self._held(there["holder"])
            version = self._watched(there, version)
            there = self._read()[0]
        before = there or {}
        token = int(before["token"]) if "token" in before else self._lowest_token()
        record = {
            "token": token + 1,
            "holder": self._holder,
            "facts": before.get("facts", {}),
        }
        try:
            self._write(record, version)
        except StorageConflictError:
            there = self._read()[0] or {}
            raise self._held(there.get("holder") or {}) from None
        if before.get("holder"):
            logger.warning("%s: took over from %s, which is dead", self.where, described(before["holder"]))
        self._ended.clear()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return self.token

    def record(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes `facts` in the one write that also proves the token; raises LeaseLostError, and changes nothing."""
        with self._lock:
            self._check()
            facts = json.loads(json.dumps(self.facts))
            change(facts)
            try:
                self._write(self._record | {"facts": facts}, self._version)
            except StorageConflictError:
                raise self._found_lost() from None

    def check(self) -> None:
        """Proves, by a write, that the lease is still held; raises LeaseLostError."""
        self.record(lambda facts: None)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Proves the lease and keeps others from taking it inside, on a storage that can: a folder.

        Without that a process could be stopped between the proof and what it wanted to write.
        """
        with self._lock:
            self._check()
            if not isinstance(self.storage, LocalStorage):
                self.check()
                yield
                return
            with self.storage.alone():
                there, version = self._read()
                if there is not None and version != self._version:
                    raise self._found_lost()
                yield

    def release(self) -> None:
        """Releases the lease, so that the next holder need not wait; if the storage fails, it expires."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._ttl)
            self._thread = None
        with self._lock:
            if self._version is None or self._lost is not None:
                return
            try:
                self._write(self._record | {"holder": None}, self._version)
            except StorageError as error:
                logger.warning("the lease of %s could not be released: %s", self.where, error)
            self._version = None

    # --- inside ------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[dict[str, Any] | None, str | None]:
        try:
            data, version = self.storage.read_version(self.key)
        except ObjectMissingError:
            return None, None
        # A damaged record can't say who wrote: its facts are rebuilt, and any version may be written over.
        return _sound(data) or {}, version

    def _write(self, record: dict[str, Any], version: str | None, *, renews: bool = False) -> None:
        # Unique, so that a lost answer can be distinguished from another process's write.
        record = record | {"nonce": uuid.uuid4().hex, "renewed": round(time.time(), 3), "ttl_seconds": self._ttl}
        record["digest"] = _digest(record)
        data = json.dumps(record, indent=1).encode()
        # A loss of power ends the holder as well: that it was alive need not outlive that, and a disk that is woken
        # every two seconds never sleeps.
        unsynced = {"synced": False} if renews and isinstance(self.storage, LocalStorage) else {}
        try:
            self._version = self.storage.replace(self.key, data, version, **unsynced)
        except ObjectMissingError:
            # Whatever removed it was no other holder, who would have left a record.
            self._version = self.storage.replace(self.key, data, None)
        except StorageConflictError:
            there, current = self._read()
            if there is None or not self._is_ours(there):
                raise
            # A write of ours whose every answer was lost: it was taken for failed, and counts.
            self._version = self.storage.replace(self.key, data, current)
        self._record = record

    def _is_ours(self, there: Mapping[str, Any]) -> bool:
        """Whether this holder wrote the record: no other process writes its token."""
        own = self._record
        return bool(own) and all(there.get(name) == own.get(name) for name in ("token", "holder"))

    def _is_neighbour(self, holder: Mapping[str, Any]) -> bool:
        """Whether the holder is a process of this machine, whose life can be looked up."""
        return all(holder.get(name) == self._holder[name] for name in ("host", "boot", "namespace"))

    def _is_dead(self, holder: Mapping[str, Any]) -> bool:
        """Whether the holder is known to be gone: it was a process of this machine, and isn't there any more."""
        return self._is_neighbour(holder) and holder.get("started") != _started(int(holder.get("pid", 0)))

    def _watched(self, there: Mapping[str, Any], version: str | None) -> str | None:
        """Returns the version that a dead holder left; raises LeaseHeldError as soon as the holder is seen to live."""
        ttl = max(self._ttl, float(there.get("ttl_seconds", 0.0)))
        deadline = time.monotonic() + ttl
        while time.monotonic() < deadline:
            time.sleep(self._renewal / _POLLS_PER_RENEWAL)
            now, current = self._read()
            if now is None or not now.get("holder"):
                return current
            if current != version:
                raise self._held(now["holder"])
        return version

    def _held(self, holder: Mapping[str, Any]) -> LeaseHeldError:
        return LeaseHeldError(
            f"{self.where} is being written by {described(holder)}; two writers would destroy each other's "
            "checkpoints. Wait for it, stop it, or use another --run directory"
        )

    def _renew(self) -> None:
        while not self._ended.wait(self._renewal):
            with self._lock:
                if self._lost is not None or self._ended.is_set():
                    return
                try:
                    self._write(self._record, self._version, renews=True)
                except StorageConflictError:
                    self._found_lost()
                except Exception as error:  # noqa: BLE001 - a thread that ended would renew nothing any more
                    # The holder still is one until somebody else says so.
                    if not self._fails:
                        logger.warning("the lease of %s can't be renewed now: %s", self.where, error)
                    self._fails = True
                else:
                    self._fails = False

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._version is None:
            message = f"the lease of {self.where} is not held"
            raise LeaseLostError(message)

    def _found_lost(self) -> LeaseLostError:
        there: dict[str, Any] = {}
        with contextlib.suppress(StorageError):  # it is lost in any case
            there = self._read()[0] or {}
        self._lost = LeaseLostError(
            f"{self.where} has been taken over by {described(there.get('holder') or {})} with token "
            f"{there.get('token', 'unknown')} (this process had {self.token}), since this process had not "
            f"renewed its lease for {self._ttl:g} s. It changed nothing of the other one's, and writes nothing more"
        )
        logger.error("%s", self._lost)
        return self._lost


def sound_facts(data: bytes) -> dict[str, Any] | None:
    """Returns the facts of a lease's object as it was read; None where its bytes are not those written."""
    record = _sound(data)
    return None if record is None else dict(record.get("facts", {}))


def _sound(data: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(data)
        is_sound = record["digest"] == _digest(record)
    except (ValueError, KeyError, TypeError):
        return None
    return record if is_sound else None


def _digest(record: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def this_process() -> dict[str, Any]:
    """Returns what tells this process from every other, here and elsewhere."""
    return {
        "host": socket.gethostname(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": round(time.time()),
    }


def described(holder: Mapping[str, Any]) -> str:
    """Returns a holder as a person knows it."""
    if "pid" not in holder:
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder['pid']} on {holder.get('host')} since {since}"


def _started(pid: int) -> str:
    """Returns when a process started, in the system's own count; empty where it is gone or a zombie."""
    text = _text(f"/proc/{pid}/stat")
    if text:
        # The name, in parentheses, may hold anything, so the fields are counted from behind it.
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "running"


def _namespace() -> str:
    # Containers of one host share its name and its boot, but not its process numbers.
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
