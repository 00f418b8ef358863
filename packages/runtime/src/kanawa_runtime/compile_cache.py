"""JAX's persistent compilation cache, with entries that are checked before they are run.

An entry is machine code. One that a full disk, a crash or a bad sector has changed could crash the process, or change a
loss without a word: JAX reads what it finds. Ours end with a SHA-256 of their key and of what precedes it; one that
doesn't match, be it another program's, is removed, and the program compiled anew. It guards against accidents only:
anyone who may write the folder may run code here.
"""

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from kanawa.plugins import Finding

from kanawa_runtime import faults
from kanawa_runtime.storage.durable import partial_name

logger = logging.getLogger(__name__)

SUFFIX = "-sealed"
_DIGEST_BYTES = 32


def sealed(key: str, value: bytes) -> bytes:
    """Returns what an entry ends with: whole entries whose names were swapped are none, either."""
    return hashlib.sha256(key.encode() + b"\0" + value).digest()


class CheckedFiles:
    """One file an entry, whole or absent. What can't be read is made anew; what can't be written isn't stored."""

    def __init__(self, folder: Path) -> None:
        self._path = folder

    def get(self, key: str) -> bytes | None:
        """Returns the entry, None where there is none or it is damaged."""
        path = self._path / f"{key}{SUFFIX}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if sealed(key, value) == digest:
            return value
        logger.warning("%s is damaged: it is removed, and made anew", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps an entry, unless the disk refuses."""
        path = self._path / f"{key}{SUFFIX}"
        beside = partial_name(path)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(value + sealed(key, value))
            faults.reached("in_cache_write", beside)
            # Renamed, so that a concurrent reader sees no half of it.
            beside.replace(path)
        except OSError as error:
            fix = "set KANAWA_CACHE or JAX_COMPILATION_CACHE_DIR to a writable folder"
            logger.warning("%s can't be stored (%s); %s", path, error, fix)
            with contextlib.suppress(OSError):
                beside.unlink()


def check_entries() -> bool:
    """Has JAX keep its entries in `CheckedFiles`; call it before the first compilation. False where this JAX can't."""
    from jax._src import compilation_cache

    # jax has no public way to bring a cache of one's own (as of 0.11): without this name, its own one serves.
    if not callable(getattr(compilation_cache, "get_file_cache", None)):
        return False

    def get_file_cache(path: str) -> tuple[Any, str]:
        return CheckedFiles(Path(path)), path

    compilation_cache.get_file_cache = get_file_cache
    return True


def finding() -> Finding:
    """Returns what `kanawa doctor` reports about the cache: its folder, and whether it can be written to."""
    from kanawa.local_path import cache_folder

    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder() / "xla" / machine_key())
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(above, os.W_OK):
        fix = "set JAX_COMPILATION_CACHE_DIR or KANAWA_CACHE to a folder that can be written to"
        message = f"{folder} can't be written to"
        return Finding("warning", "compile cache", message, fix, "every program is compiled again at each start")
    return Finding("ok", "compile cache", f"compiled programs are stored in {folder}")


def machine_key() -> str:
    """Returns a short digest of what compiled programs depend on: versions, and what backends report of the machine."""
    from importlib import metadata

    from kanawa.plugins import host
    from kanawa.plugins.devices import device_specs, processor_name

    compilers = {spec.compiler for spec in device_specs().values()} - {""}
    versions = []
    for name in ("jax", "jaxlib", *sorted(compilers)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    machine = [part for _, parts in host().collect("kanawa_compile_cache_key") for part in parts]
    text = " ".join([*versions, *(machine or [processor_name()])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
