"""Adapter folders of the peft library: adapter_config.json and adapter_model.safetensors."""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, plain_config, with_adapter_factors
from kanawa.config import Config
from kanawa.contracts import AdapterStore, StoredAdapter, StoredModel
from kanawa.errors import did_you_mean
from kanawa.foreign import ForeignTensor
from kanawa.guarded_read import check_readable, guarded_json, stays_inside

from kanawa_layers.convert.accounting import foreign_value
from kanawa_layers.convert.errors import ConvertError, PickleRefusedError
from kanawa_layers.convert.huggingface import check_free
from kanawa_layers.convert.safetensors_file import Entry, read_header, write_file
from kanawa_layers.modifiers.weights import adapt
from kanawa_layers.tune.lora import LoRA

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
#: Written by `torch.save`: reading it may run code.
_PICKLE = "adapter_model.bin"
_MOST_CONFIG_BYTES = 2**20
_MOST_RANK = 4096
_MOST_NAMED = 8
#: Prefix of every tensor's name: the library's wrapper around the model.
_PREFIX = "base_model.model."
#: Settings that change what the tensors mean, with the supported values.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (False, None),
    "trainable_token_indices": (None, []),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    # PiSSA, OLoRA, CorDA and LoftQ change the model's own weights at the start: with unchanged ones the factors make
    # another model. Folders saved for unchanged weights have True.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


class PeftStore(AdapterStore):
    """LoRA as `peft` saves it, rank-stabilised and with ranks and alphas of their own for some projections."""

    def holds(self, directory: Path) -> bool:
        """Returns whether there is an adapter_config.json."""
        return (directory / CONFIG).is_file()

    def load(self, directory: Path, model: Config) -> StoredAdapter:
        """Returns the adapter; raises ConvertError for what is no LoRA of this model, UnreadableFileError for links."""
        settings = _settings(directory)
        entries = _entries(directory)
        pairs, ranks = _pairs(directory, entries)
        rank = max(ranks.values())
        # One rank everywhere, so that layers stack; with this alpha the module's own scale is 1.
        cfg = adapt(model.clone(), LoRA.Config(rank=rank, alpha=float(rank)), ("**",))
        module = cfg.build()
        table = kn.foreign.table_of(module).tensors
        wanted = {name: tensor for name, tensor in table.items() if ".lora_" in name}
        _check_names(directory, pairs, wanted)
        arrays: dict[str, np.ndarray] = {}
        for path, spec in flatten_paths(kn.param_specs(module)).items():
            if ".adapter." in path:
                arrays[path] = np.zeros(spec.shape, np.float32)
        for name, ours in pairs.items():
            scale = _scale(settings, name, ranks[name]) if name.endswith("lora_B.weight") else 1.0
            _fill(arrays, wanted[ours], _filled_up(entries[name], wanted[ours], scale, directory, name))
        factors = adapter_factors(module, unflatten_paths(arrays))
        return StoredAdapter({p: (np.asarray(a), np.asarray(b)) for p, (a, b) in factors.items() if jnp.any(b)})


def save_adapter(directory: Path, model: StoredModel) -> list[str]:
    """Writes a model's LoRA adapters as `peft` reads them, fp32; returns the tensors' names.

    Raises ConvertError for a model without adapters, and where the folder is in use; ModuleError for adapters that
    aren't products of two factors (DoRA).
    """
    check_free(directory)
    module = model.config.build()
    factors = adapter_factors(module, unflatten_paths(model.params))
    found = {(node.rank, node.alpha) for _, node in model.config.walk() if isinstance(node, LoRA.Config)}
    if not factors:
        message = "the model has no adapter to write: train it with --modify lora, or write the model with to-hf"
        raise ConvertError(message)
    rank = max(a.shape[-1] for a, _ in factors.values())
    # With several ranks each is filled up to the largest, and its scale is part of its factors.
    alpha = next(iter(found))[1] if len(found) == 1 else float(rank)
    twin = adapt(plain_config(model.config), LoRA.Config(rank=rank, alpha=alpha), ("**",)).build()
    plain = {path: np.zeros(spec.shape, np.float32) for path, spec in flatten_paths(kn.param_specs(twin)).items()
             if ".adapter." in path}  # fmt: skip
    arrays = flatten_paths(with_adapter_factors(twin, unflatten_paths(plain), factors))
    changed = tuple(f"{path}." for path in factors)
    tensors = {
        _PREFIX + name: foreign_value(tensor, arrays, {}, np.float32)
        for name, tensor in kn.foreign.table_of(twin).tensors.items()
        if ".lora_" in name and any(part.path.startswith(changed) for part in tensor.parts)
    }
    targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in tensors})
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "target_modules": targets,
        "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "init_lora_weights": True, "use_dora": False,
        "use_rslora": False, "fan_in_fan_out": False, "modules_to_save": None, "base_model_name_or_path": None,
    }  # fmt: skip
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_file(partial / TENSORS, {n: ("F32", x.shape) for n, x in tensors.items()}, tensors.__getitem__)
        (partial / CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
        os.replace(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(tensors)


def _settings(directory: Path) -> Mapping[str, Any]:
    """Returns adapter_config.json, checked; raises ConvertError."""
    settings = guarded_json(directory / CONFIG, directory, most=_MOST_CONFIG_BYTES)
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type") if isinstance(settings, dict) else type(settings).__name__
        raise _unfit(directory, f"its peft_type is {kind!r}, and only LORA is supported")
    for name, plain in _PLAIN.items():
        if settings.get(name) not in plain:
            raise _unfit(directory, f"its {name} is {str(settings[name])[:60]}, which low-rank factors can't express")
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(settings.get(name) or {}, dict):
            raise _unfit(directory, f"its {name} is a {type(settings[name]).__name__}, expected an object")
    return settings


def _entries(directory: Path) -> Mapping[str, Entry]:
    file = directory / TENSORS
    # Checked before whether it exists: a broken link also leaves the folder.
    if not stays_inside(directory, file):
        check_readable(file, directory)
    if not file.is_file():
        if (directory / _PICKLE).exists():
            message = f"{directory / _PICKLE} is a pickle, which may run code when read; save it again as safetensors"
            raise PickleRefusedError(message)
        raise _unfit(directory, f"it has no {TENSORS}")
    check_readable(file, directory)
    return read_header(file)


def _pairs(directory: Path, entries: Mapping[str, Entry]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the model's name and the rank of each tensor; raises ConvertError for tensors without their pair."""
    names, ranks = {}, {}
    for name, entry in entries.items():
        base, _, half = name.removeprefix(_PREFIX).rpartition(".lora_")
        if not name.startswith(_PREFIX) or half not in ("A.weight", "B.weight") or len(entry.shape) != 2:
            raise _unfit(directory, f"tensor {name[:200]!r} {list(entry.shape)} is no lora_A or lora_B of a projection")
        if entry.dtype not in ("F32", "BF16", "F16"):
            raise _unfit(directory, f"tensor {name!r} has dtype {entry.dtype}, expected F32, BF16 or F16")
        names[name], ranks[name] = f"{base}.lora_{half}", entry.shape["AB".index(half[0])]
        other = f"{_PREFIX}{base}.lora_{'B' if half[0] == 'A' else 'A'}.weight"
        if other not in entries:
            raise _unfit(directory, f"tensor {name!r} is there without {other!r}")
        if not 0 < ranks[name] <= _MOST_RANK:
            raise _unfit(directory, f"tensor {name!r} has rank {ranks[name]}, expected 1 to {_MOST_RANK}")
        if ranks.get(other, ranks[name]) != ranks[name]:
            raise _unfit(directory, f"{name!r} and {other!r} have ranks {ranks[name]} and {ranks[other]}")
    if not names:
        raise _unfit(directory, "it holds no tensors")
    return names, ranks


def _check_names(directory: Path, pairs: Mapping[str, str], wanted: Mapping[str, ForeignTensor]) -> None:
    strange = [ours for ours in pairs.values() if ours not in wanted]
    if strange:
        listed = "\n  ".join(f"{name[:200]}{did_you_mean(name, wanted)}" for name in strange[:_MOST_NAMED])
        more = f"\n  and {len(strange) - _MOST_NAMED} more" if len(strange) > _MOST_NAMED else ""
        raise _unfit(directory, f"this model has no such projections:\n  {listed}{more}")


def _scale(settings: Mapping[str, Any], name: str, rank: int) -> float:
    """Returns the scale of an adapter; patterns match the end of a projection's path."""
    alpha: Any = settings.get("lora_alpha", 8)
    base = name.removeprefix(_PREFIX).rpartition(".lora_")[0]
    for pattern, own in (settings.get("alpha_pattern") or {}).items():
        if base == pattern or base.endswith(f".{pattern}"):
            alpha = own
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        message = f"the alpha of {name!r} is {str(alpha)[:60]!r}, expected a number; see lora_alpha in {CONFIG}"
        raise ConvertError(message)
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _filled_up(entry: Entry, tensor: ForeignTensor, scale: float, directory: Path, name: str) -> np.ndarray:
    """Returns the tensor at the common rank; raises ConvertError where it isn't this model's, or not finite."""
    value = entry.read().astype(np.float32) * np.float32(scale)
    rank_axis = "AB".index(name[-len("A.weight")])
    room = tensor.shape[rank_axis] - value.shape[rank_axis]
    expected = list(tensor.shape)
    expected[rank_axis] = value.shape[rank_axis]
    if list(value.shape) != expected or room < 0:
        joined = "; the model fuses this projection with others, or splits it" if len(tensor.parts) > 1 else ""
        raise _unfit(directory, f"{name!r} has shape {list(value.shape)}, expected {expected}{joined}")
    if not np.isfinite(value).all():
        raise _unfit(directory, f"{name!r} holds numbers that are NaN or infinite")
    widths = [(0, 0), (0, 0)]
    widths[rank_axis] = (0, room)
    return np.pad(value, widths)


def _fill(arrays: Mapping[str, np.ndarray], tensor: ForeignTensor, value: np.ndarray) -> None:
    for part, piece in zip(tensor.parts, tensor.split(value), strict=True):
        arrays[part.path][part.where or ...] = piece


def _unfit(directory: Path, why: str) -> ConvertError:
    return ConvertError(f"the adapter in {directory} can't be used with this model: {why}")
