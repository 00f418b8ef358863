"""Errors of folders of tensors; each lists all problems, and nothing has been written."""

from collections.abc import Sequence

from kanawa.errors import KanawaError, UsageError

#: The most lines of a list in a message.
MOST_SHOWN = 100
#: Problems of one error are on separate lines.
BETWEEN = "\n  "


class ConvertError(UsageError):
    """A folder can't be converted as asked."""


class SafetensorsError(KanawaError):
    """A file isn't valid safetensors; the message names the problem."""


class PickleRefusedError(ConvertError):
    """A folder holds its weights as pickles, which may run code when read."""


class UnknownFamilyError(ConvertError):
    """No catalogued family has this model_type."""


class TensorMismatchError(ConvertError):
    """Tensors are missing, left over, renamed or wrongly shaped; `problems` names every one."""

    def __init__(self, subject: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        counted = f"{len(problems)} tensor{'s do' if len(problems) > 1 else ' does'}n't fit; nothing was written"
        super().__init__(f"{subject}: {counted}{BETWEEN}{shortened(problems, BETWEEN)}")


def shortened(lines: Sequence[str], between: str) -> str:
    """Returns the first of many lines, and how many more there are."""
    rest = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return between.join([*lines[:MOST_SHOWN], *rest])
