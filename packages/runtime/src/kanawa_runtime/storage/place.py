"""Where a run lies, as a person writes it: a folder, or an address such as `s3://bucket/run`."""

import re
from pathlib import Path

from kanawa.contracts import open_storage
from kanawa.guarded_read import UnreadableFileError, guarded_bytes
from kanawa.local_path import local_path

#: One slash will do: `Path` makes one of two.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
#: In the folder that stands for an address here, what it stands for.
MARK = ".address"
_MOST_ADDRESS_BYTES = 1 << 16


def address_of(text: object) -> str | None:
    """Returns a text as an address, without a slash at its end; None for what is a path."""
    match = _ADDRESS.match(str(text))
    if match is None and not str(text).endswith("://"):
        return None
    if match is None:
        return str(text)
    return f"{match['scheme'].lower()}://{match['rest'].strip('/')}"


def run_place(text: str | Path, what: str = "") -> str | Path:
    """Returns a run's address or path; raises UsageError for a text that can be neither."""
    address = address_of(text)
    # A folder has one name: `file:///run` becomes its path.
    return local_path(text, what) if address is None or address.startswith("file:") else address


def check_place(text: str, what: str) -> None:
    """Raises UsageError for a text that no run can lie at: before anything expensive happens."""
    place = run_place(text, what)
    if isinstance(place, str):
        open_storage(place).close()


def stands_for(folder: Path) -> str | None:
    """Returns the address that a local folder holds the small files of; None for a run that lies there."""
    try:
        return guarded_bytes(folder / MARK, most=_MOST_ADDRESS_BYTES).decode().strip() or None
    except (OSError, UnreadableFileError, UnicodeDecodeError):
        return None


def shown_place(folder: Path) -> str:
    """Returns a run's folder as a person knows it: by its address, where it stands for one."""
    return stands_for(folder) or str(folder)
