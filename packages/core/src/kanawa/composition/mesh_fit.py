"""A rule's mesh where the model's sizes don't divide by it: less of what splits parameters, more copies."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.composition.mesh_rules import dcn_axes
from kanawa.composition.modifiers import apply_modifier
from kanawa.composition.target import Target
from kanawa.config import Config
from kanawa.errors import ConfigError
from kanawa.plugins import MeshRule, host

#: Axes that may give way to `data`, the first to give way first: a shard of a parameter is the cheapest to enlarge.
_GIVING_WAY = ("fsdp", "tensor")


def fit_mesh(cfg: Config, model: Any, rule: MeshRule, target: Target) -> tuple[Config, MeshRule]:
    """Returns the config with the mesh of the rule, or with the nearest one that the model's sizes divide by.

    `model` is what the config builds. The rule comes back with the mesh that was taken. Where none fits, the rule's
    own stays, and composing says what doesn't fit.
    """
    dcn = dcn_axes(rule, target)
    original = apply_modifier(cfg.clone(), "mesh", {"axes": dict(rule.mesh), "dcn_axes": dcn}, "mesh rule")
    fewest = _problems(original, model, target)
    best, taken = original, rule
    for mesh in _smaller(rule.mesh, target) if fewest else ():
        other = apply_modifier(cfg.clone(), "mesh", {"axes": mesh, "dcn_axes": dcn}, "mesh rule")
        count = _problems(other, model, target)
        if count < fewest:
            fewest, best, taken = count, other, dataclasses.replace(rule, mesh=mesh)
        if not fewest:
            break
    return best, taken


def _problems(cfg: Config, model: Any, target: Target) -> int:
    """Returns how many problems the config has; 0 for an incomplete one: `--set` may yet complete it."""
    # A frozen config can't be changed, and modifiers and overrides come later.
    trial = cfg.clone()
    try:
        trial.freeze()
    except ConfigError:
        return 0
    checks = host().collect("kanawa_config_checks", config=trial, target=target, model=model)
    return sum(len(reported) for _, reported in checks)


def _smaller(mesh: Mapping[str, int], target: Target) -> Iterator[dict[str, int]]:
    """Yields meshes of as many devices whose parameters are in fewer parts, the largest number of parts first."""
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
    # The first is the rule's own mesh, which was tried already.
    for option in sorted(options, key=lambda option: math.prod(option.values()), reverse=True)[1:]:
        parts = math.prod([*option.values(), *whole.values()])
        yield {"data": devices // parts, **whole, **option}
