"""Which mesh rule fits a target and a model: predicates on capability, never on instance names.

Where the model's sizes don't divide by the rule's mesh: less of what splits parameters, more copies.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kanawa.composition.config_checks import count_problems
from kanawa.composition.modifiers import apply_modifier
from kanawa.composition.rule_file import VARIABLE, user_rules
from kanawa.composition.target import Target
from kanawa.config import Config, origin
from kanawa.errors import TargetError, did_you_mean
from kanawa.plugins import MeshRule, host
from kanawa.plugins.devices import device_specs
from kanawa.plugins.discovery import CORE

#: What origins call the step.
STAGE = "mesh rule"
#: Axes that may give way to `data`, the first to give way first: a shard of a parameter is the cheapest to enlarge.
_GIVING_WAY = ("fsdp", "tensor")


def find_rule(target: Target, num_parameters: int) -> MeshRule | None:
    """Returns the best fitting rule, by priority and then by how much it demands, its slices' axes resolved.

    None without a fitting rule. One of the user's own file wins over all installed ones.
    """
    rules = [
        dataclasses.replace(rule, distribution=plugin.partition(":")[0])
        for plugin, offered_rules in host().collect("kanawa_mesh_rules")
        for rule in offered_rules
    ]
    users = user_rules()
    _warn_of_unknown_devices([*rules, *users])
    own = [rule for rule in users if fits(rule, target, num_parameters)]
    fitting = own or [rule for rule in rules if fits(rule, target, num_parameters)]
    if fitting:
        best = max(fitting, key=lambda rule: (rule.priority, _strictness(rule), rule.name))
        return dataclasses.replace(best, dcn=_between_slices(best, target))
    return None


def no_rule(target: Target, num_parameters: int) -> TargetError:
    """Returns the error of several devices for which there is no rule, and which nothing else places."""
    rules = [rule for _, offered in host().collect("kanawa_mesh_rules") for rule in offered]
    platform = [rule.name for rule in rules if rule.platform == target.device.platform]
    offered = ", ".join(sorted(platform)) or "none"
    message = (
        f"no mesh rule fits target {target.selector} ({target.chips} chips, {target.slices} slices) and a model of "
        f"{num_parameters:,} parameters; rules for {target.device.platform}: {offered}; choose a mesh yourself, "
        f'for example --modify mesh:axes={{"fsdp":-1}}, name a rule file in {VARIABLE}, or install kanawa-parallel '
        "and the target's backend"
    )
    return TargetError(message)


def provenance(rule: MeshRule) -> str:
    """Returns which rule it is and who offers it, for origins and messages."""
    if not rule.distribution:
        return rule.name
    whose = f"{rule.name} of {rule.distribution} {host().installed().get(rule.distribution, '')}".strip()
    return f"{whose}: {rule.reason}" if rule.reason else whose


def _warn_of_unknown_devices(rules: Iterable[MeshRule]) -> None:
    """Warns of devices in rules that no plugin describes: the rule never fits them."""
    known = {spec.name for spec in device_specs().values()}
    for rule in rules:
        for name in rule.devices:
            if name not in known:
                near = did_you_mean(name, known)
                host().warn(f"mesh rule {provenance(rule)} is for a device {name!r} that no plugin describes{near}")


def fits(rule: MeshRule, target: Target, num_parameters: int) -> bool:
    """Returns whether every demand of the rule is met."""
    return (
        rule.platform == target.device.platform
        and (not rule.devices or target.device.name in rule.devices)
        and rule.min_chips <= target.chips <= (rule.max_chips or target.chips)
        and rule.min_parameters <= num_parameters <= (rule.max_parameters or num_parameters)
        and (rule.slices is None or (rule.slices == "multi") == (target.slices > 1))
    )


def _between_slices(rule: MeshRule, target: Target) -> dict[str, int]:
    """Returns the rule's axes between slices, -1 filled in; none for a single slice."""
    if target.slices == 1:
        return {}
    fixed = math.prod(size for size in rule.dcn.values() if size != -1)
    return {name: target.slices // fixed if size == -1 else size for name, size in rule.dcn.items()}


def _strictness(rule: MeshRule) -> int:
    bounds = (rule.devices, rule.max_chips, rule.max_parameters, rule.slices)
    demands = sum(1 for bound in bounds if bound)
    return demands + (rule.min_chips > 1) + (rule.min_parameters > 0)


def fit_mesh(cfg: Config, model: Any, rule: MeshRule, target: Target) -> tuple[Config, MeshRule]:
    """Returns the config with the mesh of the rule, or with the nearest one that the model's sizes divide by.

    `model` is what the config builds. The returned rule has the mesh that was taken. If none fits, it is the one with
    the fewest problems, the rule's own before others, and composing reports them.
    """
    best, fewest, mesh = cfg, math.inf, rule.mesh
    for axes in _meshes(rule.mesh, target):
        arguments = {"axes": axes, "dcn_axes": dict(rule.dcn)}
        candidate = apply_modifier(cfg.clone(), "mesh", arguments, STAGE, provenance(rule), CORE)
        count = count_problems(candidate, model, target)
        if count < fewest:
            best, fewest, mesh = candidate, count, axes
        if not fewest:
            break
    return best, dataclasses.replace(rule, mesh=mesh)


def fit_cuts(cfg: Config, model: Any, rule: MeshRule, target: Target) -> Iterator[str]:
    """Changes each number of microbatches that a rule set and the batch can't be cut by to the nearest that it can be.

    `model` is what the config builds. Yields what it changed, one sentence each.
    """
    from kanawa.contracts import GradientStrategy, Workload

    batch = cfg.batch_shape() if isinstance(cfg, Workload.Config) else None
    if batch is None:
        return
    for path, node in [each for each in cfg.walk() if isinstance(each[1], GradientStrategy.Config)]:
        for field, parts in node.build().cuts().items():
            where = f"{path}.{field}"
            if cfg.origin_history(where)[-1].stage != STAGE or not (problems := count_problems(cfg, model, target)):
                continue
            whole = (count for count in range(1, batch.rows + 1) if batch.rows % count == 0)
            for count in sorted(whole, key=lambda count: abs(math.log(count / parts))):
                trial = cfg.clone()
                trial.set_path(where, count)
                if count_problems(trial, model, target) < problems:
                    said = f"{where} is {count}: the rule's {parts} don't cut {batch.rows_path} ({batch.rows}) evenly"
                    with origin(STAGE, f"{provenance(rule)}, the nearest to its {parts}"):
                        cfg.set_path(where, count)
                    yield f"mesh rule {rule.name}: {said}"
                    break


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
