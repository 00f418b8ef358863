"""Paths are local: an address of a bucket is told from one before a folder of that name is made."""

import re
from pathlib import Path

from kanawa.errors import UsageError

#: Two letters at least, for C:/ is a drive; one slash will do, since `Path` makes one of two.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)


def local_path(text: str | Path, what: str = "") -> Path:
    """Returns the path with `~` expanded. `what` is how a person gave it, such as "--run".

    Raises UsageError for an address such as s3://bucket/run, which as a path would be a folder called "s3:".
    """
    address = _ADDRESS.match(str(text))
    if address is None:
        return Path(text).expanduser()
    scheme, rest = address["scheme"], address["rest"]
    asked = f"{what} {scheme}://{rest}".strip()
    if scheme.lower() == "file":
        message = f"{asked} is an address; give the path itself: /{rest}"
        raise UsageError(message)
    message = (
        f"{asked} is an address, and no installed package speaks {scheme}://; expected a local folder. "
        "Mount the storage and give the folder that it appears as, or copy the files"
    )
    raise UsageError(message)
