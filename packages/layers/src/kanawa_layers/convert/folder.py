"""A Hugging Face model folder: its config, the place of every tensor, and other files to copy."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.errors import did_you_mean
from kanawa.guarded_read import check_readable, guarded_json, plain_name

from kanawa_layers.convert.errors import BETWEEN, ConvertError, PickleRefusedError, SafetensorsError, shortened
from kanawa_layers.convert.safetensors_file import Entry, read_header

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: Files of a tokenizer and its chat template.
CARRIED = (
    "tokenizer*.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "spiece.model", "*.tiktoken", "chat_template*", "generation_config.json",
)  # fmt: skip
#: A config with the 21,000 labels of the largest classifiers takes two megabytes.
_MOST_BYTES = 16 * 2**20
#: The index of a trillion parameters in 140,000 tensors takes 15 MB.
_MOST_INDEX_BYTES = 64 * 2**20
#: Twice what the largest published model has.
MOST_TENSORS = 300_000
#: Above this many pairs of names, near names take too long.
_MOST_COMPARED = 20_000
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclasses.dataclass(frozen=True)
class Folder:
    """An opened folder. `tensors` maps names to tensors of all shards."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    files: Mapping[str, Path]


def read_config(directory: Path) -> dict[str, Any]:
    """Returns config.json; raises ConvertError where there is none, or it isn't an object with a model_type."""
    file = directory / CONFIG
    if not directory.is_dir():
        message = f"{directory} is not a directory; expected a downloaded Hugging Face model folder"
        raise ConvertError(message)
    try:
        config = guarded_json(file, directory, most=_MOST_BYTES)
    except OSError as error:
        message = f"{directory} has no readable {CONFIG}, so it isn't a Hugging Face model folder: {error}"
        raise ConvertError(message) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        message = f"{file} has no model_type: it isn't a Hugging Face model's config"
        raise ConvertError(message)
    return config


def open_folder(directory: Path) -> Folder:
    """Returns the folder with all headers read and checked; raises ConvertError, SafetensorsError."""
    config = read_config(directory)
    files = {path.name: path for pattern in CARRIED for path in sorted(directory.glob(pattern))}
    for path in files.values():
        _check(path, directory)
    tensors: dict[str, Entry] = {}
    weight_map = _weight_map(directory)
    for file in _shards(directory, weight_map):
        _check(file, directory)
        for name, entry in read_header(file).items():
            if name in tensors:
                message = f"{directory}: tensor {name!r} is both in {tensors[name].file.name} and in {file.name}"
                raise SafetensorsError(message)
            tensors[name] = entry
        if len(tensors) > MOST_TENSORS:
            message = f"{directory} has more than {MOST_TENSORS:,} tensors, which no model does; download it again"
            raise SafetensorsError(message)
    _check_index(directory, weight_map, tensors)
    return Folder(directory, config, tensors, files)


def _check(file: Path, directory: Path) -> None:
    try:
        check_readable(file, directory)
    except OSError as error:
        message = f"{file} can't be read: {error.strerror or error}; download it again"
        raise ConvertError(message) from error


def _shards(directory: Path, weight_map: Mapping[str, str]) -> list[Path]:
    if (directory / INDEX).exists():
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (directory / name).exists()]
        if missing:
            shown = shortened(missing, ", ")
            message = f"{directory / INDEX} names files that aren't there: {shown}; download them again"
            raise ConvertError(message)
        return [directory / name for name in names]
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles and not others:
        message = (
            f"{directory} holds its weights as pickles ({', '.join(pickles)}), which can run any code when they are "
            "read; only safetensors are. Get the safetensors revision of the model, or have transformers save it anew"
        )
        raise PickleRefusedError(message)
    others_text = f"; it has {', '.join(others)}, without an index" if others else ""
    message = f"{directory} has neither {SINGLE} nor {INDEX}{others_text}"
    raise ConvertError(message)


def _weight_map(directory: Path) -> dict[str, str]:
    """Returns the file of each tensor as the index says; {} without an index."""
    file = directory / INDEX
    if not os.path.lexists(file):
        return {}
    try:
        mapped = guarded_json(file, directory, most=_MOST_INDEX_BYTES)["weight_map"]
        names = {str(tensor): str(name) for tensor, name in mapped.items()}
    except (OSError, KeyError, AttributeError, TypeError, IndexError) as error:
        message = f"{file} is not a valid index of shards: {type(error).__name__}: {error}; download it again"
        raise ConvertError(message) from error
    # The index is untrusted: "../../x" in it would read any file.
    outside = [name for name in names.values() if not plain_name(name)]
    if outside:
        message = f"{file} points outside of its folder, or names no file: {shortened(sorted(set(outside)), ', ')}"
        raise ConvertError(message)
    return names


def _check_index(directory: Path, weight_map: Mapping[str, str], tensors: Mapping[str, Entry]) -> None:
    problems = [t for t, name in weight_map.items() if t not in tensors or tensors[t].file.name != name]
    if problems:
        known = tensors if len(tensors) * len(problems) <= _MOST_COMPARED else ()
        shown = [f"{t} is not in {weight_map[t]}{did_you_mean(t, known) if known else ''}" for t in problems]
        message = f"{directory / INDEX} and its shards disagree:\n  {shortened(shown, BETWEEN)}"
        raise ConvertError(message)
