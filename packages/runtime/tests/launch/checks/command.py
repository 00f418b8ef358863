"""Whether a command is one that `kanawa` takes, as far as a launcher writes it. Pure functions."""

import re
import shlex
from collections.abc import Iterator, Sequence

_VERBS = ("train", "serve")
_OPTION = re.compile(r"--[a-z][-a-z0-9]*")
#: How the values of options look that a launcher writes; of others it doesn't know whether they have one.
_VALUES = {
    "--run": r".+",
    "--on": r"\S+",
    "--data": r".+",
    "--steps": r"\d+",
    "--init-from": r".+",
    "--modify": r"\S.*",
    "--set": r"[^=\s]+=.*",
}
_FLAGS = ("--require-fused",)
#: Arguments that launchers add follow.
_JOINING = "--coordinator"


def command_problems(words: Sequence[str]) -> Iterator[str]:
    """Yields what is wrong with a command; of another program than ours only its name is looked at."""
    program = words[0] if words else ""
    if not program or " " in program or program in _VERBS or program.startswith("-"):
        yield f"command begins with {program!r}, expected a program, such as kanawa"
        return
    if program != "kanawa":
        return
    verb, subject, *rest = [*words[1:3], "", ""][:2] + list(words[3:])
    if verb not in _VERBS:
        yield f"command: kanawa {verb!r} is no job; expected one of {', '.join(_VERBS)}"
    # An experiment's name has no blanks, a folder's may.
    if not subject or subject.startswith("-") or (" " in subject and "/" not in subject):
        yield f"command: {subject!r} is no experiment and no run"
    yield from _options(rest)


def _options(words: list[str]) -> Iterator[str]:
    index = 0
    while index < len(words):
        option = words[index]
        index += 1
        if not _OPTION.fullmatch(option):
            yield f"command: {option!r} is no option; expected --name"
        elif option in _VALUES:
            value = words[index] if index < len(words) else ""
            if not re.fullmatch(_VALUES[option], value, re.DOTALL):
                yield f"command: {option} {value!r} isn't of the kind that {option} takes"
            index += 1
        elif option not in _FLAGS and index < len(words) and not words[index].startswith("--"):
            index += 1


def line_problems(line: str) -> Iterator[str]:
    """Yields what is wrong with the line of a shell that becomes a process of the job."""
    before, begins, command = line.rpartition("exec ")
    if not begins or (before and not before.endswith("\n")):
        yield "the command must take the shell's place (exec), so that SIGTERM reaches it"
        return
    try:
        words = shlex.split(command.split(f" {_JOINING} ")[0])
    except ValueError as error:
        yield f"no shell reads the command: {error}"
        return
    yield from command_problems(words)
