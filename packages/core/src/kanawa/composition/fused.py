"""Fewer, larger matmuls: layers whose weights multiply the same input are rewritten to have them fused."""

from collections.abc import Mapping
from typing import Any

from kanawa.config import Config, replace
from kanawa.contracts.weights import Fusable
from kanawa.module import Module


def fuse_layers(cfg: Config) -> None:
    """Rewrites every layer of the config that has a fused form."""
    replace(cfg, target=Fusable, edit=_fused_config, allow_none=True)


def fuse_params(model: Module, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rewritten model's parameters, made from those of `model`, which may be stacked."""
    below = {name: child for name, child in model.children.items() if isinstance(params.get(name), Mapping)}
    fused = {**params, **{name: fuse_params(child, params[name]) for name, child in below.items()}}
    if isinstance(model, Fusable) and _fused_config(model.config) is not None:
        return model.fuse(fused)
    return fused


def _fused_config(node: Any) -> Config | None:
    fused: Config | None = node._target.fused_config(node)
    return fused
