"""Which pictures or recordings files hold, and the text of each: folders, tables that name files, and tar shards."""

import json
import logging
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import Split, is_held_out
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import Found, is_address, opened_as_it_is, readable, suffix_of
from kanawa_runtime.data.records.formats import RECORD_SUFFIXES, read_rows, record_name
from kanawa_runtime.data.records.listing import found_files
from kanawa_runtime.data.records.usable import OnBad

logger = logging.getLogger(__name__)

#: What takes the place of bytes that are no UTF-8.
_REPLACED = "\ufffd"
#: Top folders that are splits, where all top folders are.
_SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "validation",
}
_FEW_SHOWN = 5
_MOST_HELD_BYTES = 1 << 32


class Item(NamedTuple):
    """A picture or a recording: its name, its class, caption or transcript, and where its bytes are."""

    name: str
    text: str
    address: str
    #: Of a file that holds others, such as a tar shard: where the item begins, and its bytes.
    start: int = 0
    size: int | None = None
    #: The split that the data say it is in, if any.
    split: Split | None = None
    #: The bytes themselves, of tables that hold them.
    data: bytes | None = None


class Kind(NamedTuple):
    """What the items are, and where their texts are.

    `text_problem` returns what is wrong with an item's text, or "". A text is the name of the folder (`by_folder`), or
    of the file `.txt` beside the item; in shards it is a member with a suffix of `text_members`, or in `.json`.
    """

    noun: str
    suffixes: frozenset[str]
    field: str
    text_field: str
    text_noun: str
    text_members: tuple[str, ...]
    by_folder: bool
    text_problem: Callable[[Any], str]


class Listing(NamedTuple):
    """The items in the order of their names, and what is wrong with those that were left out."""

    items: list[Item]
    problems: list[str]


def items_of(files: Iterable[str], root: str, kind: Kind, on_bad: OnBad) -> Listing:
    """Returns the items of files; raises CorpusError where there is none, and with "stop" for a bad one."""
    found = found_files(files, root)
    reading = _Reading(kind, on_bad)
    tables = [file for file in found if suffix_of(file.name) in RECORD_SUFFIXES]
    shards = [file for file in found if suffix_of(file.name) == ".tar"]
    if tables:
        items = list(reading.of_tables(tables))
    elif shards:
        items = [item for file in shards for item in reading.of_shard(file)]
    else:
        items = list(reading.of_folders(found))
    if not items and tables and not reading.problems:
        message = f"no row is in {', '.join(file.address for file in tables[:_FEW_SHOWN])}; expected one a {kind.noun}"
        raise CorpusError(message)
    if not items:
        names = ", ".join(file.name for file in found[:_FEW_SHOWN])
        suffixes = ", ".join(sorted(kind.suffixes))
        folders = (
            f"folders of {kind.noun}s ({suffixes}) named by their class"
            if kind.by_folder
            else f"{kind.noun}s ({suffixes}), each beside a .txt of its name"
        )
        message = (
            f"no {kind.noun} is in {', '.join(files)} below {root}, which has {names}"
            f"{f' and {len(found) - _FEW_SHOWN:,} other files' if len(found) > _FEW_SHOWN else ''}: expected "
            f"{folders}, a table ({', '.join(sorted(RECORD_SUFFIXES))}) with the fields {kind.field} and "
            f"{kind.text_field}, or .tar shards"
        )
        first = f"; the first problem: {reading.problems[0]}" if reading.problems else ""
        raise CorpusError(message + first)
    if reading.problems:
        count, first = len(reading.problems), reading.problems[0]
        logger.warning(
            "%d rows or files are left out, %d %ss are used; the first left out: %s",
            count,
            len(items),
            kind.noun,
            first,
        )
    return Listing(items, reading.problems)


class _Reading:
    """Reads the items of one kind; collects the problems of those left out."""

    def __init__(self, kind: Kind, on_bad: OnBad) -> None:
        self._kind, self._on_bad = kind, on_bad
        self.problems: list[str] = []
        self._held = 0

    def of_folders(self, files: list[Found]) -> Iterator[Item]:
        """Yields items named `class/…/file`, or those beside their texts; in `split/…` where each top folder is one."""
        own = [file for file in files if suffix_of(file.name) in self._kind.suffixes]
        parts = {file.name: PurePosixPath(file.name).parts for file in own}
        fewest = 3 if self._kind.by_folder else 2
        has_splits = bool(own) and all(len(p) >= fewest and p[0].lower() in _SPLITS for p in parts.values())
        texts = {} if self._kind.by_folder else {f.name[:-4]: f for f in files if suffix_of(f.name) == ".txt"}
        for file in own:
            split = _SPLITS[parts[file.name][0].lower()] if has_splits else None
            if self._kind.by_folder:
                folders = parts[file.name][has_splits:-1]
                if not folders:
                    message = f"{file.address} is in no folder of a class; put pictures into folders named by it"
                    raise CorpusError(message)
                yield Item(file.name, folders[0], file.address, split=split)
                continue
            beside = texts.pop(str(PurePosixPath(file.name).with_suffix("")), None)
            text = None if beside is None else _text_in(beside.address)
            problem = "there is no .txt of its name beside it" if text is None else self._read_problem(text)
            if problem:
                self._refuse(f"{file.address}: {problem}")
            else:
                yield Item(file.name, str(text), file.address, split=split)
        for alone in texts.values() if own else ():
            self._refuse(f"{alone.address}: there is no {self._kind.noun} of its name beside it")

    def of_tables(self, files: list[Found]) -> Iterator[Item]:
        """Yields the items that rows name, by paths relative to the table's folder, or hold as bytes.

        A field `split` is honoured.
        """
        kind = self._kind
        for file in files:
            for number, fields, unreadable in read_rows(file.address):
                place = record_name(file.address, number)
                problem = unreadable or self._row_problem(fields)
                held = "" if problem else fields[kind.field]
                # Hugging Face's tables hold {"bytes": …, "path": …}.
                held = held.get("bytes") or held.get("path") if isinstance(held, dict) else held
                address, data = place, held if isinstance(held, bytes) else None
                if data is not None:
                    self._count_bytes(len(data), place)
                elif not problem:
                    address = str(held) if is_address(str(held)) else _beside(file.address, str(held))
                    if not is_address(address) and not Path(address).is_file():
                        problem = f"{kind.field}: {address} isn't there; paths are relative to the table"
                if problem:
                    self._refuse(f"{place}: {problem}")
                    continue
                split = _SPLITS.get(str(fields.get("split", "")).lower())
                yield Item(
                    record_name(file.name, number), str(fields[kind.text_field]), address, split=split, data=data
                )

    def _read_problem(self, text: str) -> str:
        """Returns what is wrong with a text that was read with replacements for bytes that are no UTF-8."""
        if _REPLACED in text:
            return f"its text isn't UTF-8: {text[:40]!r}; convert it: iconv -f latin1 -t utf-8"
        return self._kind.text_problem(text)

    def _row_problem(self, fields: Mapping[str, Any]) -> str:
        kind = self._kind
        for field in (kind.field, kind.text_field):
            if field not in fields:
                option = "label_field" if kind.by_folder else "text_field"
                other = f" (--data FILE:{option}=NAME reads another one)" if field == kind.text_field else ""
                return f"no {field}{did_you_mean(field, fields)}; the row has {', '.join(fields)}{other}"
            if fields[field] in ("", None):
                return f"{field} is empty; the row has {', '.join(fields)}"
        held = fields[kind.field]
        if not isinstance(held, str | bytes) and not (
            isinstance(held, dict) and (held.get("bytes") or held.get("path"))
        ):
            return f"{kind.field} is {type(held).__name__}, expected the path of a {kind.noun} or its bytes"
        problem = kind.text_problem(fields[kind.text_field])
        return problem and f"{kind.text_field}: {problem}"

    def _count_bytes(self, count: int, place: str) -> None:
        self._held += count
        if self._held > _MOST_HELD_BYTES:
            message = (
                f"{place}: tables hold more than {_MOST_HELD_BYTES >> 30} GiB of {self._kind.noun}s, which stay in "
                "memory; write them as files or as .tar shards"
            )
            raise CorpusError(message)

    def of_shard(self, file: Found) -> Iterator[Item]:
        """Yields the samples of a WebDataset shard: members of one name up to the first dot, one of them the text."""
        kind = self._kind
        samples: dict[str, dict[str, tarfile.TarInfo]] = {}
        with (
            opened_as_it_is(file.address) as stream,
            readable(file.address),
            tarfile.open(fileobj=stream, mode="r:") as archive,
        ):
            for member in archive:
                if member.isfile():
                    folder, _, base = member.name.rpartition("/")
                    key, _, extension = base.partition(".")
                    samples.setdefault(f"{folder}/{key}" if folder else key, {})[f".{extension.lower()}"] = member
            for key, members in samples.items():
                own = next((member for suffix, member in members.items() if suffix in kind.suffixes), None)
                text = self._shard_text(archive, members)
                problem = ""
                if own is None or text is None:
                    where = f"{kind.text_noun} ({kind.text_members[0]}, or {kind.text_field} in .json)"
                    lacks = f"a {kind.noun}" if own is None else where
                    problem = f"the sample has no {lacks}; it has {', '.join(members)}"
                problem = problem or self._read_problem(str(text))
                if own is None or problem:
                    self._refuse(f"{file.address}:{key}: {problem}")
                    continue
                yield Item(f"{file.name}:{key}", str(text), file.address, own.offset_data, own.size)

    def _shard_text(self, archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]) -> str | None:
        for suffix in (*self._kind.text_members, ".json"):
            stream = archive.extractfile(members[suffix]) if suffix in members else None
            if stream is not None:
                text = stream.read().decode(errors="replace").strip()
                if suffix != ".json":
                    return text
                try:
                    value = json.loads(text).get(self._kind.text_field)
                except (ValueError, AttributeError):
                    return None
                return None if value is None else str(value)
        return None

    def _refuse(self, message: str) -> None:
        if self._on_bad == "stop":
            raise CorpusError(message + "; leave such rows out with on_bad=skip")
        self.problems.append(message)


def words_problem(text: Any) -> str:
    """Returns what is wrong with a text that is to be words; "" for none."""
    if not isinstance(text, str):
        return f"found {type(text).__name__}, expected text"
    return "" if text.strip() else "the text is empty"


def _text_in(address: str) -> str:
    with opened_as_it_is(address) as stream:
        return stream.read().decode(errors="replace").strip()


def _beside(table: str, path: str) -> str:
    if is_address(table):
        return f"{table.rpartition('/')[0]}/{path}"
    return str(Path(table).parent / path)


def in_order(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the classes, each once: by number where all are numbers, else by name."""
    names = set(texts)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def split_items(items: list[Item], split: str, one_in: int) -> list[Item]:
    """Returns the items of a split, or "all": as the data say, else one in `one_in` by its name's hash is held out."""
    if split == "all":
        return items
    if any(item.split for item in items):
        return [item for item in items if (item.split or "train") == split]
    return [item for item in items if is_held_out(item.name, one_in) == (split == "validation")]


def item_bytes(item: Item) -> bytes:
    """Returns the bytes of an item; raises CorpusError for a file that can't be read."""
    if item.data is not None:
        return item.data
    with opened_as_it_is(item.address) as stream:
        stream.seek(item.start)
        return stream.read(-1 if item.size is None else item.size)


def item_size(item: Item) -> int:
    """Returns how many bytes an item has; 0 at an address, where asking takes a request each."""
    if item.data is not None:
        return len(item.data)
    if item.size is not None:
        return item.size
    path = Path(item.address)
    return path.stat().st_size if path.is_file() else 0
