"""Every error Kanawa raises on purpose, under one base, with the exit code the command line uses.

A message says what was asked, what was found, what would be valid, and what to do next. More specific
classes live beside the code that raises them and derive from one of these.
"""

import difflib
from collections.abc import Iterable

#: The exit code of what failed for now alone: the same command may succeed later.
RETRY = 42


class KanawaError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class Interruption(BaseException):
    """Somebody outside asked the program to stop, as Ctrl-C does; raised through everything that catches errors."""


#: What passes even where a stranger's code is called, which may raise anything else, SystemExit too, and be blamed.
INTERRUPTIONS = (KeyboardInterrupt, Interruption)


class UsageError(KanawaError):
    """The caller asked for something that can't be: fix the command or the config."""

    exit_code = 2


class ConfigError(UsageError):
    """A config is wrong: unknown field, wrong type, unset value, bad path, bad text."""


class UnknownNameError(UsageError):
    """A name is not in the catalog."""


class TargetError(UsageError):
    """A target selector can't be parsed or doesn't exist."""


class ShardingError(UsageError):
    """Axes, rules and mesh don't fit together."""


class CompositionError(UsageError):
    """An experiment can't be assembled; `problems` lists everything found, not only the first."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class PluginError(KanawaError):
    """An installed plugin is broken, incompatible or in conflict."""


class AmbiguousNameError(PluginError):
    """A bare name that several distributions claim was asked for."""

    exit_code = UsageError.exit_code


class ModuleError(KanawaError):
    """A module was declared or called in a way that can't work."""


class ContextError(ModuleError):
    """A module's context was used outside the call or trace it belongs to."""


class KernelError(KanawaError):
    """No kernel can do what was asked, or a fused one was required and none applies."""


def did_you_mean(name: str, choices: Iterable[str], limit: int = 12) -> str:
    """Returns a suffix for an error message: the nearest choices to `name`, else the choices themselves."""
    ordered = sorted(set(choices))
    near = difflib.get_close_matches(name, ordered, n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(repr(n) for n in near) + "?"
    if not ordered:
        return "; there are none"
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return "; choices: " + ", ".join(ordered[:limit]) + more
