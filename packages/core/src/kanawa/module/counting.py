"""How many parameters a model has, and how many of them one token meets."""

from typing import NamedTuple

from kanawa.arrays.tree import flatten_paths
from kanawa.module.functional import param_specs
from kanawa.module.module import Module


class ParameterCount(NamedTuple):
    """All parameters, and those that take part in one token's forward pass."""

    total: int
    active: int


def count_parameters(module: Module) -> ParameterCount:
    """Returns the counts of a built module, from its declarations alone; what it leaves idle, each layer says."""
    total = sum(spec.size for spec in flatten_paths(param_specs(module)).values())
    return ParameterCount(total, total - module.idle_parameters())
