"""What can be wrong with data, before and while it is read."""

from kanawa.errors import KanawaError, UsageError


class CorpusError(UsageError):
    """A corpus is missing, empty, unreadable or malformed; the message names the file."""


class RowError(UsageError):
    """Rows were asked for that can't be: a bad length, window, batch or host slice."""


class LoaderError(KanawaError):
    """The loader's rows don't match what the source declares."""


class ShardError(KanawaError):
    """A shard of encoded text can't be written, or isn't what its digest says."""


class ItemError(UsageError):
    """One item of the data, such as a picture, can't be used; the message is the reason alone."""
