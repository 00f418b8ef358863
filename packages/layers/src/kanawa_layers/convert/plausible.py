"""Checks that a config.json fits the folder's tensors, before anything is built.

A config is untrusted: building 10**12 layers would exhaust the machine's memory.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.contracts import ForeignConfigError
from kanawa.foreign import ForeignTable, ForeignTooManyError, table_of
from kanawa.module import Module

from kanawa_layers.convert.errors import ConvertError
from kanawa_layers.convert.folder import CONFIG, Folder

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
