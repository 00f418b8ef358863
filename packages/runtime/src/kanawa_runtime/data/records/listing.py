"""Which files globs and folders mean, on this machine or at an address: each once, by name."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from kanawa.errors import did_you_mean
from kanawa.local_path import local_path

from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import Found, file_system, is_address, listed, opened

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


def found_files(patterns: Iterable[str], root: str, dataset_split: str = "train") -> list[Found]:
    """Returns every file once, sorted by its name relative to `root`, a folder or an address.

    Of a folder that Hugging Face `datasets` saved, the Arrow files that its state lists; where it holds several splits,
    those of `dataset_split`. Raises CorpusError for a pattern that matches nothing.
    """
    local: dict[str, Path] = {}
    remote: dict[str, Found] = {}
    for pattern in patterns:
        if is_address(pattern) or is_address(root):
            remote.update((found.address, found) for found in _matching_addresses(root, pattern))
        else:
            for file in matching_files(Path(root), pattern):
                local[Path(os.path.relpath(file, root)).as_posix()] = file
    once: dict[str, Found] = {}
    for name, file in sorted(local.items()):
        # A file under two names, through a link, could be in both splits: training on what is held out.
        once.setdefault(os.path.realpath(file), Found(name, str(file)))
    return _of_datasets(sorted([*once.values(), *remote.values()]), dataset_split)


def _matching_addresses(root: str, pattern: str) -> list[Found]:
    """Returns the files of a glob, a folder or a file at an address."""
    whole = pattern if is_address(pattern) else f"{root.rstrip('/')}/{pattern}"
    scheme, _, path = whole.partition("://")
    if is_pattern(path):
        parts = path.split("/")
        fixed = next(i for i, part in enumerate(parts) if is_pattern(part))
        folder, glob = f"{scheme}://{'/'.join(parts[:fixed])}", "/".join(parts[fixed:])
    else:
        system, place = file_system(whole)
        try:
            single = system.isfile(place)
        except Exception as error:  # What a remote file system raises is its own.
            message = f"can't read {whole}: {error}"
            raise CorpusError(message) from error
        if single:
            return [Found(_relative(whole, root), whole)]
        folder, glob = whole.rstrip("/"), "**/*"
    wanted = _regex(glob)
    hidden = any(part.startswith(".") for part in glob.split("/"))
    there = [
        found
        for found in listed(folder)
        if hidden or not any(part.startswith(".") for part in PurePosixPath(found.name).parts)
    ]
    chosen = [found for found in there if wanted.fullmatch(found.name)]
    if not chosen:
        names = [found.name for found in there[:_MOST_LOOKED_AT]]
        holds = f"{folder} holds {len(there)} files{did_you_mean(glob, names)}" if there else f"{folder} holds no files"
        message = f"no file matches {whole!r}; {holds}"
        raise CorpusError(message)
    return [Found(_relative(found.address, root), found.address) for found in chosen]


def _relative(address: str, root: str) -> str:
    return address.removeprefix(f"{root.rstrip('/')}/") if is_address(root) else address.partition("://")[2]


_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"


def _of_datasets(files: list[Found], dataset_split: str) -> list[Found]:
    """Returns the files with the folders of Hugging Face `datasets` reduced to their data."""
    names = {found.name: found for found in files}
    folders = {_folder(name) for name in names if PurePosixPath(name).name == _STATE}
    folders = {folder for folder in folders if _below(folder, _INFO) in names}
    several = {_folder(name) for name in names if PurePosixPath(name).name == _DICT}
    left_out: set[str] = set()
    for folder in several:
        inside = {inner for inner in folders if inner and _folder(inner) == folder}
        splits = {PurePosixPath(inner).name for inner in inside}
        if inside and dataset_split not in splits:
            message = (
                f"{_folder(names[_below(folder, _DICT)].address) or '.'} holds no split {dataset_split!r}"
                f"{did_you_mean(dataset_split, splits)}; choose one: split=NAME"
            )
            raise CorpusError(message)
        left_out |= {inner for inner in inside if PurePosixPath(inner).name != dataset_split}
    data = {file for folder in folders - left_out for file in _listed_in_state(folder, names)}
    return [
        found
        for name, found in sorted(names.items())
        if name in data or (_folder(name) not in folders and not (_folder(name) in several and name.endswith(_DICT)))
    ]


def _listed_in_state(folder: str, names: dict[str, Found]) -> list[str]:
    """Returns the names of the data files of one dataset; raises CorpusError where one isn't there."""
    state = names[_below(folder, _STATE)].address
    with opened(state) as file:
        content = file.read()
    try:
        files = [str(entry["filename"]) for entry in json.loads(content)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{state} doesn't list the dataset's files ({error!r}): was save_to_disk stopped? Save it again"
        raise CorpusError(message) from error
    there = [_below(folder, name) for name in files]
    gone = [name for name in there if name not in names]
    if gone:
        message = f"{state} lists {gone[0]}, which isn't there: was save_to_disk stopped, or a file lost? Save it again"
        raise CorpusError(message)
    return there


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
