"""Which files a glob means: `**` crosses folders, links are followed once, and nothing found is explained."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kanawa.errors import did_you_mean
from kanawa.local_path import local_path

from kanawa_runtime.data.errors import CorpusError

_MAGIC = re.compile(r"[*?\[]")
#: Entries looked at to explain an empty match; a home folder may hold millions.
_MOST_LOOKED_AT = 10_000


def is_pattern(text: str) -> bool:
    """Returns whether the text has a wildcard."""
    return _MAGIC.search(text) is not None


def split_pattern(pattern: str) -> tuple[str, str]:
    """Returns (folder, rest): the leading part without wildcards, "" for none, and the glob below it."""
    parts = PurePosixPath(pattern).parts
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:fixed])) if fixed else "", str(PurePosixPath(*parts[fixed:]))


def matching_files(root: Path, pattern: str) -> list[Path]:
    """Returns the files of a glob relative to `root`, sorted; a folder stands for all files below it.

    Hidden files match only where the pattern names the dot. Raises CorpusError, naming near files, for no match.
    """
    local_path(pattern, "the data's files")
    whole = root / pattern
    if not is_pattern(pattern) and whole.is_file():
        return [whole]
    if not is_pattern(pattern) and whole.is_dir():
        folder, glob = whole, "**/*"
    else:
        base, glob = split_pattern(pattern)
        folder = root / base
    wanted = _regex(glob)
    depth = None if "**" in glob else glob.count("/")
    hidden = any(part.startswith(".") for part in glob.split("/"))
    paths = sorted(file for file, name in _walk(folder, depth, hidden) if wanted.fullmatch(name))
    if not paths:
        raise CorpusError(_explained(root, pattern, folder))
    return paths


def _walk(folder: Path, depth: int | None, hidden: bool) -> Iterator[tuple[Path, str]]:
    """Yields (file, name relative to the folder). A linked folder is entered once, or a link to a parent never ends."""
    visited: set[str] = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        relative = Path(here).relative_to(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        if depth is not None and len(relative.parts) >= depth:
            folders.clear()
        folders[:] = sorted(name for name in folders if hidden or not name.startswith("."))
        for name in sorted(names):
            file = Path(here) / name
            # A link to nowhere is kept: reading it says so, where leaving it out would lose a text in silence.
            readable = file.is_file() or (file.is_symlink() and not file.exists())
            if readable and (hidden or not name.startswith(".")):
                yield file, (relative / name).as_posix()


def _regex(glob: str) -> re.Pattern[str]:
    """Returns the glob as an expression over POSIX paths; `*` and `?` stay within a folder's name."""
    out, at = [], 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif glob.startswith("**", at):
            out.append(".*")
            at += 2
        # From at + 2 on, since a bracket right after the first one is a member, as in shells.
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            out.append(f"[{'^' + inside[1:] if inside[0] == '!' else inside}]")
            at = end + 1
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(glob[at], re.escape(glob[at])))
            at += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        message = f"{glob!r} is no pattern: {error}; write a bracket that is meant as such as [[]"
        raise CorpusError(message) from error


def _explained(root: Path, pattern: str, folder: Path) -> str:
    head = f"no file matches {pattern!r} below {root.resolve()}"
    if not folder.is_dir():
        missing = next(path for path in (folder, *folder.parents) if path.parent.is_dir())
        siblings = [entry.name for entry in list(missing.parent.iterdir())[:_MOST_LOOKED_AT]]
        kind = "a file, not a folder" if missing.is_file() else "not there"
        near = "" if missing.is_file() else did_you_mean(missing.name, siblings)
        return f"{head}: {missing} is {kind}{near}"
    names = [name for (_, name), _ in zip(_walk(folder, None, hidden=False), range(_MOST_LOOKED_AT), strict=False)]
    if not names:
        return f"{head}: {folder} holds no files"
    return f"{head}; {folder} holds {len(names)} files{did_you_mean(pattern, names)}"
