"""Hugging Face folders, untrusted: every file checked before it is read, and the config against the tensors.

A config is untrusted: building 10**12 layers would exhaust the machine's memory.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kanawa.contracts import ForeignConfigError
from kanawa.errors import did_you_mean
from kanawa.foreign import ForeignTable, ForeignTooManyError, table_of
from kanawa.guarded_read import check_readable, guarded_json, plain_name
from kanawa.module import Module

from kanawa_layers.convert.errors import BETWEEN, ConvertError, PickleRefusedError, SafetensorsError, shortened
from kanawa_layers.convert.model_type import is_of_diffusers, model_type_of
from kanawa_layers.convert.safetensors_file import Entry, read_header

CONFIG = "config.json"
#: How names of files of weights begin.
_WEIGHTS, _WEIGHTS_OF_DIFFUSERS = "model", "diffusion_pytorch_model"
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


def weights_name(config: Mapping[str, Any]) -> str:
    """Returns how the names of a folder's files of weights begin."""
    return _WEIGHTS_OF_DIFFUSERS if is_of_diffusers(config) else _WEIGHTS


def single_file(config: Mapping[str, Any]) -> str:
    """Returns the name of the one file of weights of a folder without shards."""
    return f"{weights_name(config)}.safetensors"


def index_file(config: Mapping[str, Any]) -> str:
    """Returns the name of the index of shards."""
    return f"{single_file(config)}.index.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """An opened folder. `tensors` maps names to tensors of all shards."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    files: Mapping[str, Path]


def read_config(directory: Path) -> dict[str, Any]:
    """Returns config.json; raises ConvertError where there is none, or it doesn't say what model it is of."""
    file = directory / CONFIG
    if not directory.is_dir():
        message = f"{directory} is not a directory; expected a downloaded Hugging Face model folder"
        raise ConvertError(message)
    try:
        config = guarded_json(file, directory, most=_MOST_BYTES)
    except OSError as error:
        message = f"{directory} has no readable {CONFIG}, so it isn't a Hugging Face model folder: {error}"
        raise ConvertError(message) from error
    if not isinstance(config, dict) or model_type_of(config) is None:
        message = f"{file} has no model_type, and no _class_name: it isn't a Hugging Face model's config"
        raise ConvertError(message)
    return config


def open_folder(directory: Path) -> Folder:
    """Returns the folder with all headers read and checked; raises ConvertError, SafetensorsError."""
    config = read_config(directory)
    files = {path.name: path for pattern in CARRIED for path in sorted(directory.glob(pattern))}
    for path in files.values():
        _check(path, directory)
    tensors: dict[str, Entry] = {}
    index = directory / index_file(config)
    weight_map = _weight_map(directory, index)
    for file in _shards(directory, index, single_file(config), weight_map):
        _check(file, directory)
        for name, entry in read_header(file).items():
            if name in tensors:
                message = f"{directory}: tensor {name!r} is both in {tensors[name].file.name} and in {file.name}"
                raise SafetensorsError(message)
            tensors[name] = entry
        if len(tensors) > MOST_TENSORS:
            message = f"{directory} has more than {MOST_TENSORS:,} tensors, which no model does; download it again"
            raise SafetensorsError(message)
    _check_index(index, weight_map, tensors)
    return Folder(directory, config, tensors, files)


def _check(file: Path, directory: Path) -> None:
    try:
        check_readable(file, directory)
    except OSError as error:
        message = f"{file} can't be read: {error.strerror or error}; download it again"
        raise ConvertError(message) from error


def _shards(directory: Path, index: Path, single: str, weight_map: Mapping[str, str]) -> list[Path]:
    if index.exists():
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (directory / name).exists()]
        if missing:
            shown = shortened(missing, ", ")
            message = f"{index} names files that aren't there: {shown}; download them again"
            raise ConvertError(message)
        return [directory / name for name in names]
    if (directory / single).exists():
        return [directory / single]
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles and not others:
        message = (
            f"{directory} holds its weights as pickles ({', '.join(pickles)}), which can run any code when they are "
            "read; only safetensors are. Get the safetensors revision of the model, or have transformers save it anew"
        )
        raise PickleRefusedError(message)
    others_text = f"; it has {', '.join(others)}, without an index" if others else ""
    message = f"{directory} has neither {single} nor {index.name}{others_text}"
    raise ConvertError(message)


def _weight_map(directory: Path, file: Path) -> dict[str, str]:
    """Returns the file of each tensor as the index says; {} without an index."""
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


def _check_index(index: Path, weight_map: Mapping[str, str], tensors: Mapping[str, Entry]) -> None:
    problems = [t for t, name in weight_map.items() if t not in tensors or tensors[t].file.name != name]
    if problems:
        known = tensors if len(tensors) * len(problems) <= _MOST_COMPARED else ()
        shown = [f"{t} is not in {weight_map[t]}{did_you_mean(t, known) if known else ''}" for t in problems]
        message = f"{index} and its shards disagree:\n  {shortened(shown, BETWEEN)}"
        raise ConvertError(message)


_LAYER_COUNTS = frozenset(
    {"num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"}
)
#: Names of other counts that become lists: of layers, experts, or a period of layers.
_COUNT = re.compile(r"layer|expert|pattern|interval|period|group|block|replace|depth|every|freq")
#: Names of axes of arrays.
_SIZE = re.compile(r"(size|dim|heads?|rank|width|d_ff|d_model|d_kv|expand|channels|kernel|embeddings)$")
#: A string in their place would be truthy.
_FLAG = re.compile(r"^(tie|use|is)_|_bias$")
#: Published counts end at 1,000 layers and 400 experts.
_MOST_LAYERS, _MOST_COUNTED = 2_000, 100_000
#: An axis may always be this long: a window or an image's side is no axis of a parameter.
_ALWAYS_ALLOWED = 2**24
#: Tensors that may be missing before the config is considered another model's.
_SPARE_TENSORS = 10_000


def refuse_implausible(folder: Folder) -> None:
    """Raises ConvertError for a config with more layers or longer axes than the folder's tensors can have."""
    where = f"{folder.directory / CONFIG}"
    held = len(folder.tensors)
    elements = sum(entry.num_elements for entry in folder.tensors.values())
    for path, name, value in _entries(folder.config):
        if isinstance(value, list) and len(value) > _MOST_LAYERS and not _is_labels(name):
            raise _refused(where, path, f"a list of {len(value):,}", f"at most {_MOST_LAYERS:,}")
        if _FLAG.search(name) and not isinstance(value, bool | None):
            raise _refused(where, path, _shown(value), "true or false")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in _LAYER_COUNTS and value > min(held, _MOST_LAYERS):
            limit = (
                f"at most {_MOST_LAYERS:,}, and no more than the folder's {held:,} tensors: a layer has at least one"
            )
            raise _refused(where, path, _shown(value), limit)
        if _COUNT.search(name) and value > _MOST_COUNTED:
            raise _refused(where, path, _shown(value), f"at most {_MOST_COUNTED:,}")
        if _SIZE.search(name) and value > max(elements, _ALWAYS_ALLOWED):
            limit = f"no more than the {elements:,} elements of the folder's tensors"
            raise _refused(where, path, _shown(value), limit)


def _shown(value: Any) -> str:
    """Returns a value of an untrusted config, shortened for a message."""
    if isinstance(value, int | float) and -(10**300) < value < 10**300:
        return f"{value:.7g}"
    return "a number of hundreds of digits" if isinstance(value, int) else repr(value)[:80]


def bounded_table(folder: Folder, model: Module) -> ForeignTable:
    """Returns the table of a model; raises ConvertError where it would have far more tensors than the folder."""
    limit = len(folder.tensors) + _SPARE_TENSORS
    try:
        return table_of(model, most=limit)
    except ForeignTooManyError as error:
        message = (
            f"{folder.directory / CONFIG} is of a model with more than {limit:,} tensors, and the folder has "
            f"{len(folder.tensors):,}; is a shard missing, or the config another model's?"
        )
        raise ConvertError(message) from error


def _entries(config: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (path, key, value) of a config and the objects in it."""
    for name, value in config.items():
        yield f"{at}{name}", name, value
        if isinstance(value, Mapping):
            yield from _entries(value, f"{at}{name}.")


def _is_labels(name: str) -> bool:
    return "label" in name or "token" in name


def _refused(where: str, path: str, found: str, expected: str) -> ForeignConfigError:
    return ForeignConfigError(
        f"{where} says {path[:200]} is {found}, expected {expected}; is a shard missing, or the config another model's?"
    )
