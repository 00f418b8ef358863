"""A rule's mesh where the model's sizes don't divide by it: less of what splits parameters, more copies."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.composition.config_checks import count_problems
from kanawa.composition.mesh_rules import provenance
from kanawa.composition.modifiers import apply_modifier
from kanawa.composition.target import Target
from kanawa.config import Config
from kanawa.plugins import MeshRule
from kanawa.plugins.discovery import CORE

#: Axes that may give way to `data`, the first to give way first: a shard of a parameter is the cheapest to enlarge.
_GIVING_WAY = ("fsdp", "tensor")


def fit_mesh(cfg: Config, model: Any, rule: MeshRule, target: Target) -> tuple[Config, MeshRule]:
    """Returns the config with the mesh of the rule, or with the nearest one that the model's sizes divide by.

    `model` is what the config builds. The returned rule has the mesh that was taken. If none fits, it is the one with
    the fewest problems, the rule's own before others, and composing reports them.
    """
    best, fewest, mesh = cfg, math.inf, rule.mesh
    for axes in _meshes(rule.mesh, target):
        arguments = {"axes": axes, "dcn_axes": dict(rule.dcn)}
        candidate = apply_modifier(cfg.clone(), "mesh", arguments, "mesh rule", provenance(rule), CORE)
        count = count_problems(candidate, model, target)
        if count < fewest:
            best, fewest, mesh = candidate, count, axes
        if not fewest:
            break
    return best, dataclasses.replace(rule, mesh=mesh)


def _meshes(mesh: Mapping[str, int], target: Target) -> Iterator[dict[str, int]]:
    """Yields the mesh, then those of as many devices with parameters in fewer parts, the largest number first."""
    yield dict(mesh)
    devices = target.jax_devices // target.slices
    fixed = math.prod(size for size in mesh.values() if size != -1)
    sizes = {name: devices // fixed if size == -1 else size for name, size in mesh.items()}
    # A rule may want more devices than the target has: nothing is left for -1.
    if any(size < 1 or devices % size for size in sizes.values()):
        return
    options: list[dict[str, int]] = [{}]
    for name in _GIVING_WAY:
        if name in sizes:
            # Only halves: sizes of models and of slices have powers of two in common, seldom anything else.
            halves = [sizes[name] >> n for n in range(sizes[name].bit_length()) if sizes[name] % (1 << n) == 0]
            options = [{**option, name: half} for option in options for half in halves]
    whole = {name: size for name, size in sizes.items() if name not in (*_GIVING_WAY, "data")}
    # The first is the rule's own mesh.
    for option in sorted(options, key=lambda option: math.prod(option.values()), reverse=True)[1:]:
        parts = math.prod([*option.values(), *whole.values()])
        yield {"data": devices // parts, **whole, **option}
