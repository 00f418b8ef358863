"""A user's own text: which files a glob means, files or their lines as documents, and JSON Lines records."""

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from kanawa.config import REQUIRED
from kanawa.errors import did_you_mean
from kanawa.local_path import local_path

from kanawa_runtime.data.corpus import Corpus, Document, read_bytes
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


#: Marks at the start of files that other encodings leave.
_OTHER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


def named_files(patterns: Iterable[str], root: Path) -> list[tuple[str, Path]]:
    """Returns (name relative to `root`, path) of every file once, by name; raises CorpusError for a fruitless glob."""
    named = {
        Path(os.path.relpath(file, root)).as_posix(): file
        for pattern in patterns
        for file in matching_files(root, pattern)
    }
    once: dict[str, tuple[str, Path]] = {}
    for name, file in sorted(named.items()):
        # A file under two names, through a link, could be in both splits: training on what is held out.
        once.setdefault(os.path.realpath(file), (name, file))
    return sorted(once.values())


class FileCorpus(Corpus):
    """What corpora of a user's files share: patterns, and names relative to a root."""

    class Config(Corpus.Config):
        #: Where the files lie says nothing about them: their content is pinned by the corpus's digest.
        PLACEMENT = ("root",)

        #: Globs, absolute or relative to `root`; `**` crosses folders, a folder means all below it. Each must match.
        files: tuple[str, ...] = REQUIRED
        #: Names, and so the split, are relative to this folder: moving it as a whole changes nothing.
        root: str = "."

    def paths(self) -> list[tuple[str, Path]]:
        """Returns (name, path) of every file; see `named_files`."""
        return named_files(self.config.files, Path(self.config.root))

    def describe(self) -> str:
        """Returns the corpus's kind with its patterns."""
        return f"the corpus of {', '.join(self.config.files)}"


class TextFiles(FileCorpus):
    """UTF-8 text files, each a document, or each line that isn't blank a document."""

    class Config(FileCorpus.Config):
        split_lines: bool = False

    def read(self) -> Iterator[Document]:
        """Yields documents named by path, or `path:line` counting from 1."""
        for name, path in self.paths():
            data = read_text(path)
            if not self.config.split_lines:
                # What is blank teaches nothing, and held out it has no bytes to divide by.
                if data.strip():
                    yield Document(name, data)
                continue
            for number, line in enumerate(data.splitlines(), 1):
                if line.strip():
                    yield Document(f"{name}:{number}", line)


class JsonLines(FileCorpus):
    """JSON Lines files: one object a line, whose `field` holds the text of a document."""

    class Config(FileCorpus.Config):
        field: str = "text"

    def read(self) -> Iterator[Document]:
        """Yields documents named `path:line`; raises CorpusError that names a bad record's line."""
        for name, path in self.paths():
            for number, record in json_lines(path):
                text = self._text(record, f"{path}:{number}")
                if text.strip():
                    yield Document(f"{name}:{number}", text)

    def _text(self, record: dict[str, Any], place: str) -> bytes:
        field = self.config.field
        if field not in record:
            message = f"{place}: no field {field!r}{did_you_mean(field, record)}"
            raise CorpusError(message)
        text = record[field]
        if not isinstance(text, str):
            message = f"{place}: field {field!r} is a {type(text).__name__}, expected a string"
            raise CorpusError(message)
        # A lone surrogate has no UTF-8 form, and json lets it through.
        return text.encode("utf-8", "replace")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, object) of a JSON Lines file, lines counted from 1, blank ones skipped."""
    # Bytes end lines at CR and LF alone; str.splitlines would also cut at U+2028, which JSON may hold as it is.
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            message = f"{path}:{number}: not JSON: {error.msg} at column {error.colno}; each line must be one object"
            raise CorpusError(message) from error
        if not isinstance(record, dict):
            message = f"{path}:{number}: found a {type(record).__name__}, expected an object"
            raise CorpusError(message)
        yield number, record


def read_text(path: Path) -> bytes:
    """Returns the bytes of a UTF-8 file without its mark; raises CorpusError if it can't be read or isn't text."""
    data = read_bytes(path)
    for mark, encoding in _OTHER_MARKS.items():
        if data.startswith(mark):
            message = (
                f"{path} isn't UTF-8 text: it begins as {encoding} does. Convert it (iconv -f {encoding} -t UTF-8), "
                "or leave it out of the patterns"
            )
            raise CorpusError(message)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = (
            f"{path} isn't UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}, line {line}): "
            "convert it (iconv -f LATIN1 -t UTF-8, if that is what it is), or leave it out of the patterns"
        )
        raise CorpusError(message) from error
    if b"\0" in data:
        message = f"{path} is binary (it has a NUL byte at offset {data.index(0)}): leave it out of the patterns"
        raise CorpusError(message)
    return data.removeprefix(codecs.BOM_UTF8)
