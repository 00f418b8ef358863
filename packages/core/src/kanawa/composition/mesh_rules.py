"""Which mesh rule fits a target and a model: predicates on capability, never on instance names."""

import dataclasses
import math
from collections.abc import Iterable

from kanawa.composition.rule_file import VARIABLE, user_rules
from kanawa.composition.target import Target
from kanawa.errors import TargetError, did_you_mean
from kanawa.plugins import MeshRule, host
from kanawa.plugins.devices import device_specs


def find_rule(target: Target, num_parameters: int) -> MeshRule | None:
    """Returns the best fitting rule, by priority and then by how much it demands, its slices' axes resolved.

    None for a single device without a rule. A fitting rule of the user's own file wins over all installed ones.
    Raises TargetError where several devices are asked for and no installed rule fits.
    """
    rules = [
        dataclasses.replace(rule, distribution=plugin.partition(":")[0])
        for plugin, offered_rules in host().collect("kanawa_mesh_rules")
        for rule in offered_rules
    ]
    _warn_of_unknown_devices([*rules, *user_rules()])
    own = [rule for rule in user_rules() if fits(rule, target, num_parameters)]
    fitting = own or [rule for rule in rules if fits(rule, target, num_parameters)]
    if fitting:
        best = max(fitting, key=lambda rule: (rule.priority, _strictness(rule), rule.name))
        return dataclasses.replace(best, dcn=_between_slices(best, target))
    if target.jax_devices == 1:
        return None
    platform = [rule.name for rule in rules if rule.platform == target.device.platform]
    offered = ", ".join(sorted(platform)) or "none"
    message = (
        f"no mesh rule fits target {target.selector} ({target.chips} chips, {target.slices} slices) and a model of "
        f"{num_parameters:,} parameters; rules for {target.device.platform}: {offered}; choose a mesh yourself, "
        f'for example --modify mesh:axes={{"fsdp":-1}}, name a rule file in {VARIABLE}, or install kanawa-parallel '
        "and the target's backend"
    )
    raise TargetError(message)


def provenance(rule: MeshRule) -> str:
    """Returns which rule it is and who offers it, for origins and messages."""
    if not rule.distribution:
        return rule.name
    return f"{rule.name} of {rule.distribution} {host().installed().get(rule.distribution, '')}".strip()


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
