"""Fewer, larger products: layers whose weights meet the same input are rewritten to have those weights as one.

A step of few rows starts each product anew, which on a CPU costs what reading a small weight does.
"""

from collections.abc import Mapping
from typing import Any

from kanawa.config import Config, replace
from kanawa.contracts.joinable import Joinable
from kanawa.module import Module


def join_layers(cfg: Config) -> None:
    """Rewrites every layer of the config that has a joined form."""
    replace(cfg, target=Joinable, edit=_joined, allow_none=True)


def joined(model: Module, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that the rewritten model takes, of those of `model`, which may be stacked."""
    below = {name: child for name, child in model.children.items() if isinstance(params.get(name), Mapping)}
    made = {**params, **{name: joined(child, params[name]) for name, child in below.items()}}
    if isinstance(model, Joinable) and _joined(model.config) is not None:
        return model.join(made)
    return made


def _joined(node: Any) -> Config | None:
    joined_config: Config | None = node._target.joined_config(node)
    return joined_config
