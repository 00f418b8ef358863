"""The files that `--data` names: `ADDRESS[:field=NAME,…][*WEIGHT]`, several separated by commas."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from kanawa.config import Config, apply_override
from kanawa.errors import KanawaError, UsageError
from kanawa.local_path import local_path

from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.records.addresses import COMPRESSED, is_address, suffix_of
from kanawa_runtime.data.records.formats import JSON_LINES, RECORD_SUFFIXES
from kanawa_runtime.data.records.listing import found_files, is_pattern, split_pattern
from kanawa_runtime.data.text_files import FileCorpus, JsonLines, RecordTexts, TextFiles

_TEXTS = frozenset({".txt", ".text", ".md", ".rst", ".py"})
_NUMBER = r"[-+]?(?:[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?|nan|inf)"
_WEIGHT = re.compile(rf"(?P<data>.+)\*(?P<weight>{_NUMBER})", re.DOTALL | re.IGNORECASE)
_OPTIONS = re.compile(r"(?P<address>.+?):(?P<options>[a-z_]+=.*)", re.DOTALL)
_OPTION = re.compile(r"[a-z_]+=.*", re.DOTALL)
#: Short names of a corpus's fields.
_SHORT = {"split": "dataset_split", "lines": "split_lines"}


ConfigT = TypeVar("ConfigT", bound=Config)


class Part(NamedTuple):
    """One of the data that a text names: a file's address with options, or a name; and its weight, if it has one."""

    text: str
    weight: float | None = None


def parts_of(text: str) -> list[Part]:
    """Returns the parts of `A*0.7,B*0.3` or `A,B`; UsageError: only some have a weight, or one is below 0.

    A part's options may be separated by commas too: `A:field=body,on_bad=skip*0.7`. `shard*07` stays a glob where it
    matches files.
    """
    parts: list[Part] = []
    waiting = ""
    for segment in _segments(text):
        if waiting and not _OPTION.fullmatch(segment):
            parts.append(Part(waiting))
            waiting = ""
        segment = f"{waiting},{segment}" if waiting else segment
        match = _WEIGHT.fullmatch(segment)
        if match is None or _is_glob(segment):
            waiting = segment
        else:
            weight = float(match["weight"])
            if not 0 <= weight < math.inf:
                message = f"--data {text}: the weight of {match['data']} is {match['weight']}, expected 0 or more"
                raise UsageError(message)
            parts.append(Part(match["data"], weight))
            waiting = ""
    parts += [Part(waiting)] if waiting else []
    bare = [part.text for part in parts if part.weight is None]
    if bare and len(bare) < len(parts):
        message = f"--data {text}: {bare[0]} has no weight; give each part a weight, as in {bare[0]}*0.5, or none"
        raise UsageError(message)
    return parts


def _is_glob(segment: str) -> bool:
    """Returns whether the `*` of what looks like a weight belongs to a pattern that matches local files."""
    if is_address(segment) or ":" in segment:
        return False
    try:
        return bool(found_files([segment], "."))
    except KanawaError:
        return False


def _segments(text: str) -> list[str]:
    """Returns the text cut at commas outside brackets; a path with a comma that is there stays whole."""
    if not is_address(text) and _there(text):
        return [text]
    segments, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth <= 0:
            segments.append(text[start:place])
            start = place + 1
    return [segment for segment in [*segments, text[start:]] if segment]


def _there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def names_files(text: str) -> bool:
    """Returns whether `--data TEXT` means files, not an experiment: a wildcard, a slash, a known suffix, or a path.

    Names of experiments may have dots ("qwen3-0.6b"), and one may be the name of a folder here: ask the catalog first.
    """
    if _there(text):
        return True
    match = _OPTIONS.fullmatch(text)
    address = match["address"] if match else text
    known = RECORD_SUFFIXES | _TEXTS | set(COMPRESSED)
    return is_pattern(address) or "/" in address or Path(address.lower()).suffix in known or _there(address)


def own_corpus(*texts: str) -> Corpus.Config:
    """Returns the corpus of globs, files or folders, each with its options: records by their suffix, others text.

    Local paths become absolute, so that a run resumes from any working folder. Raises CorpusError where nothing
    matches, or records and texts do; UsageError for an option that the corpus doesn't have.
    """
    made = [_one_corpus(text) for text in texts]
    first = made[0]
    if len(made) == 1:
        return first
    _check_apart(made, texts)
    for other, text in zip(made[1:], texts[1:], strict=True):
        unplaced = other.clone().set(files=first.files, root=first.root)
        if type(other) is not type(first) or unplaced != first:
            message = (
                f"{texts[0]} and {text} are read differently, so they can't be one text: give each a weight "
                f"({texts[0]}*0.5,{text}*0.5)"
            )
            raise CorpusError(message)
    if any(is_address(cfg.root) for cfg in made):
        files = tuple(f"{cfg.root}/{file}" for cfg in made for file in cfg.files)
        return first.set(files=files, root=".")
    root = os.path.commonpath([cfg.root for cfg in made])
    files = tuple((Path(os.path.relpath(cfg.root, root)) / file).as_posix() for cfg in made for file in cfg.files)
    return first.set(files=files, root=root)


def _check_apart(made: Sequence[FileCorpus.Config], texts: Sequence[str]) -> None:
    """Raises UsageError for a file that several texts name: it would be read once, and may have been meant twice."""
    named: dict[str, str] = {}
    for cfg, text in zip(made, texts, strict=True):
        for found in cfg.build().found():
            address = found.address if is_address(found.address) else os.path.realpath(found.address)
            other = named.setdefault(address, text)
            if other != text or texts.count(text) > 1:
                message = (
                    f"--data names {found.address} twice, by {other} and by {text}: name it once; "
                    f"for more of it than of other data give weights, as in {other}*0.7,OTHER*0.3"
                )
                raise UsageError(message)


def address_and_options(text: str) -> tuple[str, dict[str, str]]:
    """Returns the address of `ADDRESS:field=value,…` and its options; raises UsageError for no local path."""
    match = None if _there(text) else _OPTIONS.fullmatch(text)
    address = match["address"] if match else text
    options = dict(option.partition("=")[::2] for option in match["options"].split(",")) if match else {}
    if not is_address(address):
        local_path(address, "--data")
    return address, options


def _one_corpus(text: str) -> FileCorpus.Config:
    address, options = address_and_options(text)
    kind = _kind(address, options.get("split", "train"))
    folder, glob = placed(address)
    corpus = kind.Config(files=(glob,), root=folder)
    return with_options(corpus, {_SHORT.get(name, name): value for name, value in options.items()}, text)


def with_options(cfg: ConfigT, options: Mapping[str, str], text: str) -> ConfigT:
    """Returns a config with the options of `--data TEXT` set; raises KanawaError for a field that it doesn't have."""
    for name, value in options.items():
        try:
            apply_override(cfg, f"{name}={value}")
        except KanawaError as error:
            error.add_note(f"in --data {text}")
            raise
    return cfg


def _kind(address: str, dataset_split: str) -> type[JsonLines | RecordTexts | TextFiles]:
    """Returns the corpus that reads the files at an address; raises CorpusError where no one corpus does."""
    files = found_files([address], ".", dataset_split)
    records = [file for file in files if suffix_of(file.name) in RECORD_SUFFIXES]
    texts = [file for file in files if suffix_of(file.name) not in RECORD_SUFFIXES]
    if records and texts:
        near = f"{address.rstrip('/')}/**/*{suffix_of(records[0].name)}"
        message = (
            f"{address!r} matches both records ({records[0].address}) and text ({texts[0].address}): give a pattern "
            f"for one of them, such as {near!r}"
        )
        raise CorpusError(message)
    if not records:
        return TextFiles
    return JsonLines if all(suffix_of(file.name) in JSON_LINES for file in records) else RecordTexts


def placed(address: str) -> tuple[str, str]:
    """Returns (root, pattern below it) of an address or a local path."""
    if not is_address(address):
        folder, glob = (address, "**/*") if Path(address).is_dir() else split_pattern(address)
        return str(Path(folder).resolve()), glob
    scheme, _, path = address.partition("://")
    parts = path.rstrip("/").split("/")
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts))
    if fixed == len(parts):
        single = len(found_files([address], ".")) == 1 and suffix_of(address) != ""
        fixed = len(parts) - 1 if single else len(parts)
    return f"{scheme}://{'/'.join(parts[:fixed])}", "/".join(parts[fixed:]) or "**/*"
