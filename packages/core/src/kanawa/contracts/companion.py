"""A frozen model beside the one in training, such as a teacher or a reference policy: how runs fill it and drop it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.config import REQUIRED, Config
from kanawa.contracts.pretrained import Pretrained
from kanawa.contracts.roles import CausalLM
from kanawa.module import Module


class Companion(Module, abstract=True):
    """Base of modules that hold a frozen language model, which only the loss asks.

    `source` is a run or another library's folder with its parameters; empty: a copy of the trained model's first ones.
    Checkpoints hold it, so that a resumed run needs no folder. Exports and servers drop it: see `without_companions`.
    """

    model: CausalLM

    class Config(Module.Config):
        model: CausalLM.Config = REQUIRED
        source: str = ""

    def setup(self) -> None:
        """Declares the model; none of its parameters is trained."""
        self.add_child("model", self.config.model, frozen=True)


def companions_of(module: Module) -> dict[str, Companion]:
    """Returns the outermost companions below a module, by their paths from it."""
    found: dict[str, Companion] = {}
    for name, child in module.children.items():
        if isinstance(child, Companion):
            found[name] = child
        else:
            found |= {f"{name}.{path}": companion for path, companion in companions_of(child).items()}
    return found


def companion_slots(cfg: Config) -> dict[str, Config]:
    """Returns the configs of the outermost companions below a config, by their paths."""
    found: dict[str, Config] = {}
    for path, node in cfg.walk():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and isinstance(node, Companion.Config) and not inside:
            found[path] = node
    return found


def without_companions(cfg: Config) -> Config:
    """Returns a copy with None in each slot that holds a companion: the model that is used once training is over."""
    slots = companion_slots(cfg)
    cfg = cfg.clone()
    for path in slots:
        cfg.set_path(path, None)
    return cfg


@contextlib.contextmanager
def companions_apart(cfg: Config) -> Iterator[None]:
    """Takes companions, and parts with a source, out of a config meanwhile: what changes the rest leaves them alone."""
    slots = companion_slots(cfg)
    slots |= {path: node for path, node in cfg.walk() if isinstance(node, Pretrained.Config) and node.source}
    for path in slots:
        cfg.set_path(path, None)
    try:
        yield
    finally:
        for path, companion in slots.items():
            cfg.set_path(path, companion)


def without_companion_params(params: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """Returns parameters by path without those of the companions of `module`, which has them."""
    tops = tuple(f"{path}." for path in companions_of(module))
    return {path: leaf for path, leaf in params.items() if not path.startswith(tops)} if tops else dict(params)
