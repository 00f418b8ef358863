"""Parts of a model that another model was before, such as an encoder of texts: how runs fill them when they begin."""

import abc
from collections.abc import Mapping
from typing import Any

from kanawa.module import Module


class Pretrained(Module, abstract=True):
    """Base of parts whose first parameters lie in `source`, a run or another library's folder; empty: they are drawn.

    Such a part is the model's own: checkpoints, exports and servers have it, and a resumed run needs no folder.
    """

    class Config(Module.Config):
        source: str = ""
        #: The file or folder of the tokenizer that its texts were read by; empty of a part that reads none.
        tokenizer: str = ""

    @classmethod
    @abc.abstractmethod
    def taken(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters of this part by their paths in it, of those of the model in `source` by theirs."""


def pretrained_parts(module: Module) -> dict[str, Pretrained]:
    """Returns the outermost such parts below a module that have a source, by their paths from it."""
    found: dict[str, Pretrained] = {}
    for name, child in module.children.items():
        if isinstance(child, Pretrained) and child.config.source:
            found[name] = child
        else:
            found |= {f"{name}.{path}": part for path, part in pretrained_parts(child).items()}
    return found
