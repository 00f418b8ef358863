"""Exceptions by parameter path: freeze, another learning-rate scale, another weight decay."""

import dataclasses
from collections.abc import Mapping, Sequence

from kanawa.arrays.spec import ParamSpec
from kanawa.config import match_path
from kanawa.contracts import ParameterRule as ParameterRule
from kanawa.errors import UsageError, did_you_mean


class ParameterRuleError(UsageError):
    """A rule for parameters matches none, or leaves none to train."""


def apply_rules(specs: Mapping[str, ParamSpec], rules: Sequence[ParameterRule]) -> dict[str, ParamSpec]:
    """Returns the specs of the parameters to train, with the rules applied; none thaws what isn't trainable.

    Raises ParameterRuleError for a rule that matches nothing, and where nothing is left to train.
    """
    changed = dict(specs)
    # Not trainable by the layer's own word, such as a quantised weight under an adapter.
    fixed = {path for path, spec in specs.items() if not spec.trainable}
    frozen: set[str] = set()
    for rule in rules:
        matched = [path for path in specs if match_path(rule.where, path)]
        if not matched:
            message = f"no parameter matches {rule.where!r}{did_you_mean(rule.where, specs)}"
            raise ParameterRuleError(message)
        for path in matched:
            spec = changed[path]
            changed[path] = dataclasses.replace(
                spec,
                lr_scale=spec.lr_scale if rule.lr_scale is None else rule.lr_scale,
                weight_decay=spec.weight_decay if rule.weight_decay is None else rule.weight_decay,
            )
            (frozen.add if rule.frozen else frozen.discard)(path)
    frozen |= fixed
    if specs and len(frozen) == len(specs):
        message = f"the rules freeze all {len(specs)} parameters: nothing is left to train"
        raise ParameterRuleError(message)
    return {path: spec for path, spec in changed.items() if path not in frozen}
