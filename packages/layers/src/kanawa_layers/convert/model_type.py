"""What kind of model a config.json is of: `transformers` writes its model_type, `diffusers` the name of its class."""

from collections.abc import Mapping
from typing import Any

#: The key of `diffusers`, whose folders hold the network alone, in files of other names.
CLASS_NAME = "_class_name"
MODEL_TYPE = "model_type"


def model_type_of(config: Mapping[str, Any]) -> str | None:
    """Returns the name that a family is catalogued under; None of a config of neither library."""
    found = config.get(MODEL_TYPE, config.get(CLASS_NAME))
    return found if isinstance(found, str) else None


def is_of_diffusers(config: Mapping[str, Any]) -> bool:
    """Returns whether a config is as `diffusers` writes it."""
    return MODEL_TYPE not in config and CLASS_NAME in config
