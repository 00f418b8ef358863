"""What can be wrong with a folder of tensors; each error lists everything found, and nothing has been written."""

from collections.abc import Sequence

from kanawa.errors import KanawaError, UsageError

#: Of a list in a message; a folder that is wrong altogether has a line for every tensor.
MOST_TOLD = 100
#: Problems of one error stand below each other.
BETWEEN = "\n  "


class ConvertError(UsageError):
    """A folder can't be converted as asked."""


class SafetensorsError(KanawaError):
    """A file isn't sound safetensors; the message says what in it can't be right."""


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
    """Returns what a message tells of many lines: the first, and how many more there are."""
    rest = [f"and {len(lines) - MOST_TOLD} more"] if len(lines) > MOST_TOLD else []
    return between.join([*lines[:MOST_TOLD], *rest])
