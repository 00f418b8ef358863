"""Layers with an equivalent form for matmuls of few rows: fused weights, or another layout."""

import abc
from collections.abc import Mapping
from typing import Any

from kanawa.module import Module, nowrap


class Fusable(Module, abstract=True):
    """A layer that can be rewritten to compute the same with fewer or faster matmuls of few rows.

    With few rows a matmul costs what reading its weight and starting it cost, so engines fuse what they can. Training
    and checkpoints have separate weights.
    """

    @classmethod
    @abc.abstractmethod
    def fused_config(cls, cfg: Any) -> Any:
        """Returns the config of the fused layer, or None where weights aren't alike or plain."""

    @nowrap
    @abc.abstractmethod
    def fuse(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fused layer's parameters; both may have a stack's leading axes."""
