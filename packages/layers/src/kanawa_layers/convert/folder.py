"""A Hugging Face model folder: its config, where every tensor lies, and the files to carry along."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.contracts.stored_model import stays_inside
from kanawa.errors import did_you_mean

from kanawa_layers.convert.errors import ConvertError, PickleRefusedError, SafetensorsError
from kanawa_layers.convert.safetensors_file import Entry, read_header

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: What a tokenizer and its chat template may consist of.
CARRIED = (
    "tokenizer*.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "spiece.model", "*.tiktoken", "chat_template*", "generation_config.json",
)  # fmt: skip
#: A config with every label of a large classifier takes some hundred kilobytes.
_MOST_BYTES = 16 * 2**20
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "num_decoder_layers", "encoder_layers", "decoder_layers")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclasses.dataclass(frozen=True)
class Folder:
    """An opened folder. `tensors` gives every tensor's place, whatever shard it is in."""

    directory: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    files: Mapping[str, Path]


def read_config(directory: Path) -> dict[str, Any]:
    """Returns config.json; raises ConvertError where there is none, or it isn't an object with a model_type."""
    file = directory / CONFIG
    if not directory.is_dir():
        message = f"{directory} is not a directory; give a downloaded Hugging Face model folder"
        raise ConvertError(message)
    try:
        config = json.loads(_beginning(file))
    except RecursionError as error:
        message = f"{file} nests lists and objects deeper than can be read"
        raise ConvertError(message) from error
    except OSError as error:
        message = f"{directory} has no readable {CONFIG}, so it isn't a Hugging Face model folder: {error}"
        raise ConvertError(message) from error
    except ValueError as error:
        message = f"{file} isn't JSON: {error}"
        raise ConvertError(message) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        message = f"{file} has no model_type: it isn't a Hugging Face model's config"
        raise ConvertError(message)
    return config


def _beginning(file: Path) -> bytes:
    """Returns the file's bytes; raises ConvertError for one that goes on beyond any config, such as a device."""
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        message = f"{file} is more than {_MOST_BYTES:,} bytes, which no model's config is"
        raise ConvertError(message)
    return content


def refuse_unheld_layers(folder: Folder, source: str) -> None:
    """Raises ConvertError for a config with more layers than the folder has tensors: they would fill the memory."""
    for name in _LAYER_COUNTS:
        count = folder.config.get(name)
        if isinstance(count, int | float) and count > len(folder.tensors):
            message = (
                f"{source}: {CONFIG} says {name} is {count:g}, and there are {len(folder.tensors)} tensors: a layer "
                "has one at least; is a shard missing, or the config another model's?"
            )
            raise ConvertError(message)


def open_folder(directory: Path) -> Folder:
    """Returns the folder with all headers read and checked; raises ConvertError, SafetensorsError."""
    config = read_config(directory)
    files = {path.name: path for pattern in CARRIED for path in sorted(directory.glob(pattern)) if path.is_file()}
    for path in files.values():
        if not stays_inside(directory, path):
            message = f"{path} is a link out of its folder, to {path.resolve()}; put the file itself there"
            raise ConvertError(message)
    tensors: dict[str, Entry] = {}
    for file in _shards(directory):
        for name, entry in read_header(file).items():
            if name in tensors:
                message = f"{directory}: tensor {name!r} is both in {tensors[name].file.name} and in {file.name}"
                raise SafetensorsError(message)
            tensors[name] = entry
    _check_index(directory, tensors)
    return Folder(directory, config, tensors, files)


def _shards(directory: Path) -> list[Path]:
    if (directory / INDEX).exists():
        names = sorted(set(_weight_map(directory).values()))
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            message = f"{directory / INDEX} names files that aren't there: {', '.join(missing)}; download them again"
            raise ConvertError(message)
        return [directory / name for name in names]
    if (directory / SINGLE).is_file():
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
    file = directory / INDEX
    try:
        mapped = json.loads(file.read_bytes())["weight_map"]
        names = {str(tensor): str(name) for tensor, name in mapped.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        message = f"{file} is not a sound index of shards: {type(error).__name__}: {error}"
        raise ConvertError(message) from error
    # The index is somebody else's text: "../../x" in it would read any file.
    outside = [name for name in names.values() if Path(name).name != name]
    if outside:
        message = f"{file} points outside of its folder: {', '.join(sorted(set(outside)))}"
        raise ConvertError(message)
    return names


def _check_index(directory: Path, tensors: Mapping[str, Entry]) -> None:
    if not (directory / INDEX).exists():
        return
    problems = [
        f"{tensor} is not in {name}{did_you_mean(tensor, tensors)}"
        for tensor, name in _weight_map(directory).items()
        if tensor not in tensors or tensors[tensor].file.name != name
    ]
    if problems:
        message = "\n  ".join([f"{directory / INDEX} and its shards disagree:", *problems])
        raise ConvertError(message)
