"""Hugging Face model folders as a model store: checked completely when read, written in shards, atomically."""

import collections
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kanawa as kn
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import is_tuned, plain_config, to_plain
from kanawa.config import Config
from kanawa.contracts import ForeignConfigError, ModelStore, StoredModel
from kanawa.errors import ConfigError
from kanawa.foreign import ForeignTable
from kanawa.guarded_read import UnreadableFileError

from kanawa_layers.convert.accounting import account, foreign_value, gather
from kanawa_layers.convert.errors import ConvertError, UnknownFamilyError
from kanawa_layers.convert.families import built, differences, foreign_config, model_config
from kanawa_layers.convert.folder import (
    CONFIG,
    Folder,
    bounded_table,
    index_file,
    open_folder,
    read_config,
    refuse_implausible,
    single_file,
    weights_name,
)
from kanawa_layers.convert.model_type import is_of_diffusers, model_type_of
from kanawa_layers.convert.safetensors_file import DTYPES, write_file

#: The default size of a shard, as the hub's own libraries write it.
SHARD_BYTES = 5_000_000_000
# transformers refuses files without a layout; these tensors have PyTorch's.
_METADATA = {"format": "pt"}
_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
#: dtype of every tensor of a model to be written.
Dtypes = Mapping[str, str]


class HuggingFaceStore(ModelStore):
    """config.json, safetensors and tokenizer files, as `transformers` reads and writes them.

    `family` forces a model_type; `dtype` ("F32", "BF16", "F16") that of all tensors instead of the original's.
    """

    def __init__(self, *, family: str | None = None, dtype: str | None = None, shard_bytes: int = SHARD_BYTES) -> None:
        self.family, self.dtype, self.shard_bytes = family, dtype, shard_bytes

    def holds(self, directory: Path) -> bool:
        """Returns whether config.json says what model it is of."""
        try:
            return "$type" not in read_config(directory)
        except (ConvertError, UnreadableFileError):
            return False

    def inspect(self, directory: Path) -> tuple[Folder, Config, ForeignTable, dict[str, str]]:
        """Returns the folder, our config, the table, and the folder's name of each tensor; reads headers only."""
        folder = open_folder(directory)
        refuse_implausible(folder)
        try:
            cfg = model_config({**folder.config, **({"model_type": self.family} if self.family else {})})
            table = bounded_table(folder, built(cfg))
        except (ForeignConfigError, ConfigError, UnknownFamilyError) as error:
            error.add_note(f"in {directory / CONFIG}")
            raise
        return folder, cfg, table, account(str(directory), table, folder.tensors)

    def outline(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the model without its arrays, from headers alone; raises as `load` does."""
        return self._opened(directory, step)[0]

    def load(self, directory: Path, step: int | None = None) -> StoredModel:
        """Returns the model; raises ConvertError, SafetensorsError, ForeignConfigError."""
        model, folder, table, names = self._opened(directory, step)
        params, state = gather(model.config.build(), table, lambda name: folder.tensors[names[name]].read())
        return dataclasses.replace(model, params=params, state=state)

    def _opened(self, directory: Path, step: int | None) -> tuple[StoredModel, Folder, ForeignTable, dict[str, str]]:
        if step is not None:
            message = f"{directory} is a Hugging Face folder, which has no steps; leave --step out"
            raise ConvertError(message)
        folder, cfg, table, names = self.inspect(directory)
        notes = {"config": dict(folder.config), "dtypes": _brief({n: folder.tensors[names[n]].dtype for n in names})}
        return StoredModel(cfg, {}, {}, folder.files, notes), folder, table, names

    def plan(self, model: StoredModel) -> tuple[dict[str, Any], ForeignTable, dict[str, str]]:
        """Returns config.json, the table and each tensor's dtype of a model to be written."""
        model = untuned(model)
        usual, others = _noted_dtypes(model)
        config = _original_config(model, self.family) or foreign_config(model.config, self.family)
        table = kn.foreign.table_of(model.config.build())
        dtypes = {n: self.dtype or others.get(n, usual) for n in table.tensors}
        if self.dtype or "config" not in model.notes:
            usual = _brief(dtypes)["usual"]
            # The older name of `dtype`; with both, they could contradict each other.
            config = {key: value for key, value in config.items() if key != "torch_dtype"}
            if not is_of_diffusers(config):
                config["dtype"] = _TORCH_DTYPES[usual]
        return config, table, dtypes

    def save(self, directory: Path, model: StoredModel) -> None:
        """Writes the folder; raises ConvertError where it exists, ForeignConfigError for what it can't express."""
        check_free(directory)
        model = untuned(model)
        config, table, dtypes = self.plan(model)
        # Written to a temporary folder and renamed, so that no partial model is visible.
        partial = directory.with_name(f".{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self._write_tensors(partial, config, model, table, dtypes)
            model.write_files(partial)
            (partial / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            os.replace(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_tensors(
        self, folder: Path, config: Mapping[str, Any], model: StoredModel, table: ForeignTable, dtypes: Dtypes
    ) -> None:
        written = {n: table.copies.get(n, n) for n in sorted({*table.tensors, *table.copies})}
        tensors = {n: (dtypes[original], table.tensors[original].shape) for n, original in written.items()}
        shards = list(_shards(tensors, self.shard_bytes))

        def value(name: str) -> Any:
            original = written[name]
            return foreign_value(table.tensors[original], model.params, model.state, DTYPES[dtypes[original]])

        if len(shards) == 1:
            write_file(folder / single_file(config), tensors, value, _METADATA)
            return
        weight_map = {}
        for i, names in enumerate(shards, 1):
            file = f"{weights_name(config)}-{i:05d}-of-{len(shards):05d}.safetensors"
            write_file(folder / file, {n: tensors[n] for n in names}, value, _METADATA)
            weight_map.update(dict.fromkeys(names, file))
        index = {"metadata": {"total_size": sum(map(_num_bytes, tensors.values()))}, "weight_map": weight_map}
        (folder / index_file(config)).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def untuned(model: StoredModel) -> StoredModel:
    """Returns the model with adapters merged and weights dense, as other libraries expect."""
    module = model.config.build()
    if not is_tuned(module):
        return model
    params = flatten_paths(to_plain(module, unflatten_paths(model.params)))
    return dataclasses.replace(model, config=plain_config(model.config), params=params)


def check_free(directory: Path) -> None:
    """Raises ConvertError where `directory` exists and isn't empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        message = f"{directory} already exists; choose a new directory, nothing is overwritten"
        raise ConvertError(message)


def _original_config(model: StoredModel, family: str | None) -> dict[str, Any] | None:
    """Returns the config.json the model came with, if that is still this model's."""
    original = model.notes.get("config")
    if not isinstance(original, dict) or family not in (None, model_type_of(original)):
        return None
    try:
        unchanged = not differences(model_config(original), model.config)
    except ForeignConfigError:
        return None
    return dict(original) if unchanged else None


def _brief(dtypes: Dtypes) -> dict[str, Any]:
    """Returns the usual dtype and the tensors that have another."""
    usual = collections.Counter(dtypes.values()).most_common(1)[0][0]
    return {"usual": usual, "others": {name: dtype for name, dtype in dtypes.items() if dtype != usual}}


def _noted_dtypes(model: StoredModel) -> tuple[str, Mapping[str, str]]:
    """Returns the usual dtype and the others that a model came with; raises ConvertError for invalid notes."""
    noted = model.notes.get("dtypes", {})
    usual, others = (noted.get("usual", "F32"), noted.get("others", {})) if isinstance(noted, dict) else ("", {})
    if not isinstance(others, dict) or not all(each in [*_TORCH_DTYPES] for each in (usual, *others.values())):
        message = f"the model's notes say its dtypes are {str(noted)[:80]}, expected F32, BF16 or F16; import it again"
        raise ConvertError(message)
    return usual, others


def _num_bytes(tensor: tuple[str, tuple[int, ...]]) -> int:
    return math.prod(tensor[1]) * DTYPES[tensor[0]].itemsize


def _shards(tensors: Mapping[str, tuple[str, tuple[int, ...]]], limit: int) -> Iterator[list[str]]:
    """Yields the names of each shard, none above `limit` bytes unless one tensor alone is."""
    names: list[str] = []
    total = 0
    for name, tensor in tensors.items():
        size = _num_bytes(tensor)
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names
