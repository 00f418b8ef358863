"""Files that survive a crash: written beside, synced, then renamed."""

import os
import uuid
from pathlib import Path


def write_durable(path: Path, data: bytes | bytearray | memoryview, *, synced: bool = True) -> None:
    """Replaces `path` atomically: a killed process leaves the old bytes or the new. Raises OSError.

    If `synced`, so does a loss of power.
    """
    beside = partial_name(path)
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            if synced:
                # Before the rename: a file system may make a name durable before the bytes behind it.
                os.fsync(file.fileno())
        # Atomic within a file system only, hence beside and not in the temporary folder.
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    if synced:
        sync_directory(path.parent)


def partial_name(path: Path) -> Path:
    """Returns a unique name beside `path`: process numbers repeat on the hosts that share a folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.partial")


def sync_directory(directory: Path) -> None:
    """Makes a directory's entries durable; file systems that refuse fsync on directories need none."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> int:
    """Makes every file and directory under `root` durable; returns the bytes of all files. Raises OSError."""
    total = 0
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            descriptor = os.open(Path(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
                total += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))
    return total
