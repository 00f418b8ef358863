"""How many parameters a model has, and how many of them one token meets."""

from typing import NamedTuple

import kanawa as kn
from kanawa.arrays.tree import flatten_paths

from kanawa_layers.moe.mixture import MixtureOfExperts


class ParameterCount(NamedTuple):
    """All parameters, and those that take part in one token's forward pass."""

    total: int
    active: int


def count_parameters(model: kn.Module) -> ParameterCount:
    """Returns the counts of a built model: of a mixture's experts, a token meets `top_k` of `num_experts`."""
    total = sum(spec.size for spec in flatten_paths(kn.param_specs(model)).values())
    return ParameterCount(total, total - _idle(model))


def _idle(module: kn.Module) -> int:
    """Returns how many parameters one token doesn't meet, in all layers of the module."""
    idle = 0
    if isinstance(module, MixtureOfExperts):
        experts = sum(spec.size for spec in flatten_paths(kn.param_specs(module.experts)).values())
        count = module.config.num_experts
        idle += experts // count * (count - module.config.router.top_k)
    return idle + sum((child.num_stacked or 1) * _idle(child) for child in module.children.values())
