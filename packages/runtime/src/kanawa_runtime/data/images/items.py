"""Which pictures files hold, and the class of each: folders by class, tables that name files, and tar shards."""

import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from kanawa.errors import did_you_mean

from kanawa_runtime.data.corpus import Split, is_held_out
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.images.decode import PICTURES
from kanawa_runtime.data.records.addresses import Found, is_address, opened_as_it_is, readable, suffix_of
from kanawa_runtime.data.records.formats import RECORD_SUFFIXES, read_rows, record_name
from kanawa_runtime.data.records.listing import found_files

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
    """A picture: its name, the class, where its bytes are, and the split that the data say it is in, if any."""

    name: str
    label: str
    address: str
    #: Of a file that holds others, such as a tar shard: where the picture begins, and its bytes.
    start: int = 0
    size: int | None = None
    split: Split | None = None
    #: The bytes themselves, of tables that hold them.
    data: bytes | None = None


def items_of(
    files: Iterable[str], root: str, image_field: str, label_field: str, on_bad: Literal["stop", "skip"]
) -> tuple[list[Item], list[str]]:
    """Returns the pictures of files in the order of their names, and what is wrong with rows that were left out.

    Raises CorpusError where there is none, for pictures without a class, and with "stop" for a bad row.
    """
    found = found_files(files, root)
    problems: list[str] = []
    tables = [file for file in found if suffix_of(file.name) in RECORD_SUFFIXES]
    shards = [file for file in found if suffix_of(file.name) == ".tar"]
    if tables:
        items = list(_of_tables(tables, image_field, label_field, on_bad, problems))
    elif shards:
        items = [item for file in shards for item in _of_shard(file, label_field, on_bad, problems)]
    else:
        items = list(_of_folders([file for file in found if suffix_of(file.name) in PICTURES]))
    if not items:
        names = ", ".join(file.name for file in found[:_FEW_SHOWN])
        message = (
            f"no picture is in {', '.join(files)} below {root}, which has {len(found)} files ({names}): expected "
            f"folders of pictures ({', '.join(sorted(PICTURES))}) named by their class, a table "
            f"({', '.join(sorted(RECORD_SUFFIXES))}) with the fields {image_field} and {label_field}, or .tar shards"
        )
        raise CorpusError(message + (f"; the first problem: {problems[0]}" if problems else ""))
    return items, problems


def _of_folders(files: list[Found]) -> Iterator[Item]:
    """Yields pictures named `class/…/file`, or `split/class/…/file` where each top folder is a split."""
    parts = {file.name: PurePosixPath(file.name).parts for file in files}
    has_splits = bool(files) and all(len(p) > 2 and p[0].lower() in _SPLITS for p in parts.values())
    for file in files:
        folders = parts[file.name][has_splits:-1]
        if not folders:
            message = f"{file.address} is in no folder of a class; put pictures into folders named by their class"
            raise CorpusError(message)
        split = _SPLITS[parts[file.name][0].lower()] if has_splits else None
        yield Item(file.name, folders[0], file.address, split=split)


def _of_tables(
    files: list[Found], image_field: str, label_field: str, on_bad: str, problems: list[str]
) -> Iterator[Item]:
    """Yields the pictures that rows name, by paths relative to the table's folder, or hold as bytes.

    A field `split` is honoured.
    """
    held = 0
    for file in files:
        for number, fields, unreadable in read_rows(file.address):
            place = record_name(file.address, number)
            problem = unreadable or _table_problem(fields, image_field, label_field)
            image = "" if problem else fields[image_field]
            # Hugging Face's tables hold {"bytes": …, "path": …}.
            image = image.get("bytes") or image.get("path") if isinstance(image, dict) else image
            address = place
            if isinstance(image, bytes):
                held += len(image)
                _check_memory(held, place)
            elif not problem:
                address = str(image) if is_address(str(image)) else _beside(file.address, str(image))
                if not is_address(address) and not Path(address).is_file():
                    problem = f"{image_field}: {address} isn't there; paths are relative to the table"
            if problem:
                _refuse(f"{place}: {problem}", on_bad, problems)
                continue
            split = _SPLITS.get(str(fields.get("split", "")).lower())
            data = image if isinstance(image, bytes) else None
            yield Item(record_name(file.name, number), str(fields[label_field]), address, split=split, data=data)


def _check_memory(held: int, place: str) -> None:
    if held > _MOST_HELD_BYTES:
        message = (
            f"{place}: tables hold more than {_MOST_HELD_BYTES >> 30} GiB of pictures, which stay in memory; write "
            "them as files or as .tar shards"
        )
        raise CorpusError(message)


def _table_problem(fields: Mapping[str, Any], image_field: str, label_field: str) -> str:
    for field in (image_field, label_field):
        if field not in fields or fields[field] in ("", None):
            return f"no {field}{did_you_mean(field, fields)}; the row has {', '.join(fields)}"
    image = fields[image_field]
    if not isinstance(image, str | bytes) and not (
        isinstance(image, dict) and (image.get("bytes") or image.get("path"))
    ):
        return f"{image_field} is {type(image).__name__}, expected the path of a picture or its bytes"
    return ""


def _beside(table: str, path: str) -> str:
    if is_address(table):
        return f"{table.rpartition('/')[0]}/{path}"
    return str(Path(table).parent / path)


def _of_shard(file: Found, label_field: str, on_bad: str, problems: list[str]) -> Iterator[Item]:
    """Yields the samples of a WebDataset shard: members of one name up to the first dot, its class in .cls or .json."""
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
            picture = next((member for suffix, member in members.items() if suffix in PICTURES), None)
            label = _shard_label(archive, members, label_field)
            if picture is None or label is None:
                lacks = "a picture" if picture is None else f"a class (.cls, or {label_field} in .json)"
                message = f"{file.address}:{key}: the sample has no {lacks}; it has {', '.join(members)}"
                _refuse(message, on_bad, problems)
                continue
            yield Item(f"{file.name}:{key}", label, file.address, picture.offset_data, picture.size)


def _shard_label(archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], field: str) -> str | None:
    for suffix in (".cls", ".cls.txt", ".json"):
        stream = archive.extractfile(members[suffix]) if suffix in members else None
        if stream is not None:
            text = stream.read().decode(errors="replace").strip()
            if suffix != ".json":
                return text
            try:
                value = json.loads(text).get(field)
            except (ValueError, AttributeError):
                return None
            return None if value is None else str(value)
    return None


def _refuse(message: str, on_bad: str, problems: list[str]) -> None:
    if on_bad == "stop":
        raise CorpusError(message + "; leave such rows out with on_bad=skip")
    problems.append(message)


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Returns the classes, each once: by number where all are numbers, else by name."""
    names = set(labels)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def split_items(items: list[Item], split: Split, one_in: int) -> list[Item]:
    """Returns the items of a split: as the data say, else one in `one_in` by the hash of its name is held out."""
    if any(item.split for item in items):
        return [item for item in items if (item.split or "train") == split]
    held_out = [is_held_out(item.name, one_in) for item in items]
    return [item for item, held in zip(items, held_out, strict=True) if held == (split == "validation")]
