"""Files by path or by address (`s3://…`, through fsspec): opened, decompressed while read, listed, fingerprinted."""

import contextlib
import functools
import gzip
import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from kanawa.errors import KanawaError

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.extras import needed

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
COMPRESSED = (".gz", ".zst")
_CHUNK_BYTES = 1 << 20
#: Of compressed bytes that are decompressed in one go: text grows tenfold at most, zeros a thousandfold.
_SQUEEZED_BYTES = 1 << 15


class Found(NamedTuple):
    """A file: its path below the folder that was listed, and the address to open it by."""

    name: str
    address: str


def is_address(text: str) -> bool:
    """Returns whether the text begins with a scheme, as `s3://bucket/file` does."""
    return _SCHEME.match(text) is not None


# Asked of every record.
@functools.lru_cache(maxsize=256)
def suffix_of(name: str) -> str:
    """Returns the lower-case suffix that says what a file holds: `.jsonl` of `a.jsonl.gz`."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def compression_of(name: str) -> str:
    """Returns `.gz`, `.zst` or nothing."""
    suffix = Path(name.lower()).suffix
    return suffix if suffix in COMPRESSED else ""


def file_system(address: str) -> tuple[Any, str]:
    """Returns fsspec's file system of an address and the path in it; raises CorpusError where there is none."""
    fsspec = needed("fsspec", f"reading {address}")
    scheme = address.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        message = f"{address}: fsspec's file system for {scheme}:// isn't complete: {error}"
        raise CorpusError(message) from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "hf", "az", "https"))
        message = f"{address}: fsspec knows no file system for {scheme}:// ({error}); it has {known} and others"
        raise CorpusError(message) from error
    return system, path


@contextlib.contextmanager
def opened(address: str) -> Iterator[BinaryIO]:
    """Opens a file for reading from its beginning to its end, decompressed by its suffix."""
    with opened_as_it_is(address) as raw:
        kind = compression_of(address)
        if kind == ".gz":
            with gzip.GzipFile(fileobj=raw) as plain:
                yield cast(BinaryIO, plain)
        elif kind == ".zst":
            zstandard = needed("zstandard", f"reading {address}")
            yield io.BufferedReader(cast(io.RawIOBase, _Zstandard(zstandard, raw)), _CHUNK_BYTES)
        else:
            yield raw


@contextlib.contextmanager
def opened_as_it_is(address: str) -> Iterator[BinaryIO]:
    """Opens a file without decompressing it; raises CorpusError that names what can't be opened."""
    try:
        if is_address(address):
            system, path = file_system(address)
            file: IO[bytes] = system.open(path, "rb")
        else:
            file = Path(address).open("rb")  # noqa: SIM115 - closed below
    except KanawaError:
        raise
    except Exception as error:  # What a remote file system raises is its own.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        message = f"can't read {address}: {reason}; remove it from the data or make it readable"
        raise CorpusError(message) from error
    with file:
        yield cast(BinaryIO, file)


@contextlib.contextmanager
def readable(address: str, place: Callable[[], str] = str) -> Iterator[None]:
    """Turns what any library raises while a file is read into a CorpusError that names it; `place` says how far."""
    try:
        yield
    except KanawaError:
        raise
    except Exception as error:  # Every library raises its own.
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = (
            f"can't read {address}{place()}: {why}; the file is damaged or was half written: "
            "write it again, or leave it out"
        )
        raise CorpusError(message) from error


class _Zstandard(io.RawIOBase):
    """Frames of a file, one after another; a cut-off frame raises EOFError, where the library's reader returns less."""

    def __init__(self, library: Any, raw: BinaryIO) -> None:
        super().__init__()
        self._library, self._raw = library, raw
        self._frame: Any = None
        self._plain, self._next = memoryview(b""), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            block = self._next or self._raw.read(_SQUEEZED_BYTES)
            self._next = b""
            if not block:
                if self._frame is not None:
                    message = "the compressed data ends in the middle of a frame"
                    raise EOFError(message)
                return 0
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            self._plain = memoryview(self._frame.decompress(block))
            if self._frame.eof:
                self._next, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count


def listed(folder: str) -> list[Found]:
    """Returns every file below an address, sorted by name; hidden ones too."""
    system, path = file_system(folder)
    try:
        paths = system.find(path)
    except Exception as error:
        message = f"can't list {folder}: {error}"
        raise CorpusError(message) from error
    root = path.rstrip("/")
    names = sorted(file[len(root) :].lstrip("/") if root else file.lstrip("/") for file in paths)
    return [Found(name, f"{folder.rstrip('/')}/{name}" if name else folder) for name in names]


def fingerprint(address: str) -> tuple[Any, ...]:
    """Returns (when the file changed, in ns, 0 if unknown, and what changes when it does) without reading it.

    JSON values: size, times and number of a local file, what a store says of an object: etag, checksum, generation.
    """
    if is_address(address):
        system, path = file_system(address)
        try:
            info = system.info(path)
        except Exception as error:
            message = f"can't read {address}: {error}"
            raise CorpusError(message) from error
        fields = ("size", "ETag", "etag", "md5Hash", "crc32c", "generation", "mtime", "LastModified", "created")
        known = tuple(str(info[field]) for field in fields if info.get(field) is not None)
        # A size alone doesn't identify content: the file counts as changed just now.
        return (0 if len(known) > 1 else time.time_ns(), *known)
    try:
        stat = Path(address).stat()
    except OSError as error:
        message = f"can't read {address}: {error.strerror or error}; remove it from the data or make it readable"
        raise CorpusError(message) from error
    # A program can set a modification's time, not that of a change.
    return (stat.st_ctime_ns, stat.st_mtime_ns, stat.st_size, stat.st_ino)
