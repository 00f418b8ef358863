"""What can go wrong with a checkpoint, one class per kind."""

import errno
import re

from kanawa.contracts import CheckpointError, ObjectMissingError, StorageError
from kanawa.errors import RETRY, UsageError


class CheckpointDamagedError(CheckpointError):
    """A committed checkpoint can't be read back exactly; `reasons` lists what was found."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons or (message,)


class CheckpointUnreadableError(CheckpointError):
    """The storage failed while a checkpoint was read, which says nothing against the checkpoint."""

    exit_code = RETRY


class CheckpointNotFoundError(CheckpointError, UsageError):
    """The asked step is not a committed checkpoint."""


class CheckpointStructureError(CheckpointError, UsageError):
    """A sound checkpoint doesn't fit the arrays asked for; `problems` lists every difference."""

    def __init__(self, message: str, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.problems = problems


#: These are about what is there, and so is damage.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
#: No other start mends these: a name, or rights.
_PERMANENT = {*_DAMAGE, errno.EACCES, errno.EPERM, errno.EEXIST, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP}
#: How tensorstore, which raises ValueError for everything, quotes the system's number.
_QUOTED = re.compile(r"os_error_code='?(\d+)")


def is_storage_failure(error: BaseException) -> bool:
    """Whether an error of reading comes from the storage (I/O, permissions, too many files), not from what is there."""
    if isinstance(error, StorageError):
        return not isinstance(error, ObjectMissingError)
    if isinstance(error, OSError):
        return error.errno is not None and error.errno not in _DAMAGE
    number = quoted_number(error)
    return number is not None and number not in _DAMAGE


def may_pass(error: OSError) -> bool:
    """Whether what the system said of a file may be over by itself: a full or read-only disk, I/O, a stale handle."""
    return error.errno is not None and error.errno not in _PERMANENT


def quoted_number(error: BaseException) -> int | None:
    """Returns the system's error number that an error's text quotes, as tensorstore's do; None where it has none."""
    quoted = _QUOTED.search(str(error))
    return None if quoted is None else int(quoted[1])
