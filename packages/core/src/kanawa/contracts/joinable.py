"""Layers that have a form for products of few rows: weights that meet the same input as one, or laid out for rows."""

import abc
from collections.abc import Mapping
from typing import Any

from kanawa.module import Module, nowrap


class Joinable(Module, abstract=True):
    """A layer that can be rewritten to compute the same with fewer or quicker products of few rows.

    Where rows are few a product costs what reading its weight costs, and what starting it costs: an engine joins what
    it may. Training and stored parameters keep the weights apart.
    """

    @classmethod
    @abc.abstractmethod
    def joined_config(cls, cfg: Any) -> Any:
        """Returns the config of the joined layer in this one's place, or None where weights aren't alike or plain."""

    @nowrap
    @abc.abstractmethod
    def join(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the joined layer's parameters of these; both may have a stack's leading axes."""
