"""Groups of parameters, by path and role, that have an optimizer, a rate or a decay of their own."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import jax
import optax
from kanawa.arrays.optimizer_state import parameter_of
from kanawa.arrays.spec import ParamSpec
from kanawa.config import REQUIRED, match_path
from kanawa.contracts import Optimizer, ParameterGroup
from kanawa.contracts.optimizer import Schedule
from kanawa.errors import UsageError, did_you_mean

from kanawa_runtime.learn.roles import ROLES, roles
from kanawa_runtime.learn.scheduled import Flat, only_paths

logger = logging.getLogger(__name__)

#: The name of what no group takes, in paths of the state.
REST = "rest"


class ParameterGroupError(UsageError):
    """Groups that overlap, match nothing, or are named twice."""


def members(groups: Sequence[ParameterGroup], specs: Mapping[str, ParamSpec]) -> dict[str, list[str]]:
    """Returns the parameters of each group, and those of none as `REST`.

    Raises ParameterGroupError for a group without parameters, an unknown role, and a parameter that two groups take.
    """
    role_of, taken = roles(specs), dict[str, str]()
    found: dict[str, list[str]] = {}
    for group in groups:
        if group.name in found or group.name == REST or "/" in group.name:
            message = f"learner.groups: the name {group.name!r} is taken, {REST!r}, or has a slash; choose another one"
            raise ParameterGroupError(message)
        found[group.name] = _members(group, specs, role_of)
        for path in found[group.name]:
            if path in taken:
                message = (
                    f"learner.groups: {path} is in {taken[path]!r} and in {group.name!r}, and a parameter has one "
                    f"optimizer: narrow `where` or `roles` of one of them (its role is {role_of[path]!r})"
                )
                raise ParameterGroupError(message)
            taken[path] = group.name
    found[REST] = [path for path in specs if path not in taken]
    return found


def _members(group: ParameterGroup, specs: Mapping[str, ParamSpec], role_of: Mapping[str, str]) -> list[str]:
    for role in group.roles:
        if role not in ROLES:
            message = f"learner.groups: unknown role {role!r} of {group.name!r}{did_you_mean(role, ROLES)}"
            raise ParameterGroupError(message)
    for pattern in group.where:
        if not any(match_path(pattern, path) for path in specs):
            message = (
                f"learner.groups: no parameter matches {pattern!r} of {group.name!r}{did_you_mean(pattern, specs)}"
            )
            raise ParameterGroupError(message)
    chosen = [
        path
        for path in specs
        if (not group.where or any(match_path(pattern, path) for pattern in group.where))
        and (not group.roles or role_of[path] in group.roles)
    ]
    if not chosen:
        present = ", ".join(sorted(set(role_of.values())))
        message = (
            f"learner.groups: no parameter is in {group.name!r} "
            f"(where={list(group.where)}, roles={list(group.roles)}); "
            f"the model has {len(specs)} parameters, of the roles {present}"
        )
        raise ParameterGroupError(message)
    return chosen


def regrouped(groups: Sequence[ParameterGroup], specs: Mapping[str, ParamSpec]) -> dict[str, ParamSpec]:
    """Returns the specs with the groups' rate scales and decays in place of the layers' own."""
    changed, found = dict(specs), members(groups, specs)
    for group in groups:
        for path in found[group.name]:
            spec = specs[path]
            changed[path] = dataclasses.replace(
                spec,
                lr_scale=spec.lr_scale if group.lr_scale is None else group.lr_scale,
                weight_decay=spec.weight_decay if group.weight_decay is None else group.weight_decay,
            )
    return changed


class Grouped(Optimizer):
    """Each group by its optimizer, the parameters of none by `rest`; state is "GROUP/…", "rest/…"."""

    class Config(Optimizer.Config):
        groups: tuple[ParameterGroup, ...] = ()
        rest: Optimizer.Config = REQUIRED

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        own = {group.name: group.optimizer or cfg.rest for group in cfg.groups}
        self._optimizers: dict[str, Optimizer] = {name: each.build() for name, each in {**own, REST: cfg.rest}.items()}
        self.uses_curvature = any(optimizer.uses_curvature for optimizer in self._optimizers.values())

    @property
    def averages(self) -> bool:
        """Whether an optimizer of some group evaluates other parameters than it trains."""
        return any(optimizer.averages for optimizer in self._optimizers.values())

    @property
    def moments(self) -> dict[str, bool]:
        """Those of every group's optimizer."""
        return {
            f"{name}/{field}": nonnegative
            for name, optimizer in self._optimizers.items()
            for field, nonnegative in optimizer.moments.items()
        }

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the groups' transformations as one; `specs` decide who belongs where, and it is logged."""
        links = []
        for name, paths in members(self.config.groups, specs).items():
            if not paths:
                continue
            shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
            kind = type(self._optimizers[name]).__name__
            logger.info("learner: %s by %s: %s", "no group" if name == REST else f"group {name}", kind, shown)
            own = {path: specs[path] for path in paths}
            inner = self._optimizers[name].transformation(own, learning_rate)
            links.append((name, only_paths(paths, inner)))
        return optax.named_chain(*links)

    def evaluated(self, params: Flat, opt: Flat) -> Mapping[str, jax.Array]:
        """Returns each group's parameters as its optimizer evaluates them."""
        result = dict(params)
        for name, optimizer in self._optimizers.items():
            if optimizer.averages:
                own = _own(opt, name)
                paths = {parameter_of(path) for path in own}
                result |= optimizer.evaluated({path: params[path] for path in params if path in paths}, own)
        return result

    def num_updates(self, opt: Flat) -> jax.Array | None:
        """Returns the count of the first group that has one: all count the same updates."""
        counts = (optimizer.num_updates(_own(opt, name)) for name, optimizer in self._optimizers.items())
        return next((count for count in counts if count is not None), None)


def _own(opt: Flat, name: str) -> dict[str, jax.Array]:
    prefix = f"{name}/"
    return {path.removeprefix(prefix): leaf for path, leaf in opt.items() if path.startswith(prefix)}
