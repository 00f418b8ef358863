"""`compose`: from an experiment's name to a frozen config, in one order, with every origin on record."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kanawa.composition.blame import blamed
from kanawa.composition.config_checks import Problems, checked_model, unusual_values
from kanawa.composition.mesh_rules import find_rule, fit_cuts, fit_mesh, provenance
from kanawa.composition.modifiers import apply_modifier, configured, parse_modifier
from kanawa.composition.naming import base_of
from kanawa.composition.target import Target, parse_target
from kanawa.composition.undone import undone
from kanawa.config import Config, apply_override, connect_catalog, origin, rewriting
from kanawa.errors import KanawaError, TargetError, UnknownNameError, did_you_mean
from kanawa.plugins import MeshRule, component, host
from kanawa.status import stage

logger = logging.getLogger(__name__)

#: "path=value" as `--set` has it, or a path with a value of Python.
Override: TypeAlias = str | tuple[str, Any]


@dataclasses.dataclass(frozen=True)
class Composition:
    """A frozen config, where it is to run, and the mesh rule that applied.

    `source` is the folder that the experiment was derived from: a new run starts from its weights. `asked` and
    `data` are the arguments, for composing the same experiment with one change.
    """

    name: str
    config: Config
    target: Target | None = None
    rule: MeshRule | None = None
    #: The config's model, built when the config was checked; None where it has none.
    model: Any = dataclasses.field(default=None, compare=False, repr=False)
    source: Path | None = None
    asked: str | Config = ""
    data: str | None = None
    #: Modifiers, overrides and data that were asked for besides the experiment: empty if there are none.
    changes: tuple[str, ...] = ()

    def required_target(self) -> Target:
        """Returns the target; raises TargetError where the experiment was composed without one."""
        if self.target is None:
            message = f"{self.name} was composed without a target; give one with --on DEVICE-COUNT"
            raise TargetError(message)
        return self.target

    def workload(self) -> Any:
        """Builds what the config describes, around the model that is built already."""
        from kanawa.contracts import Workload

        with blamed(self.config):
            if self.model is not None and isinstance(self.config, Workload.Config):
                return self.config.build(model=self.model)
            return self.config.build()


def compose(
    experiment: str | Config,
    target: str | Target | None = None,
    modifiers: Sequence[str] = (),
    overrides: Sequence[Override] = (),
    data: str | None = None,
) -> Composition:
    """Returns the composition: experiment, mesh rule, modifiers, then `--set` overrides, checked and frozen.

    `experiment` is a catalogued experiment or model, a folder with a model, or a config; `data` puts it on other
    data (`ExperimentTemplate.with_data`).
    Raises a CompositionError with all problems; a single one is raised as the step raised it.
    """
    with stage(f"composing {experiment if isinstance(experiment, str) else type(experiment).__qualname__}"):
        return _compose(experiment, target, modifiers, overrides, data)


def _compose(
    experiment: str | Config,
    target: str | Target | None,
    modifiers: Sequence[str],
    overrides: Sequence[Override],
    data: str | None,
) -> Composition:
    problems, named = Problems(), []
    place: Target | None = None
    with problems.noted():
        place = parse_target(target) if isinstance(target, str) else target
    # Names are read from the catalog, never written: a config's text must not depend on what is installed.
    connect_catalog(load=catalogued)
    for text in modifiers:
        with problems.noted():
            modifier, values = parse_modifier(text)
            configured(modifier, values)
            named.append((modifier, values))
    try:
        name, cfg, source = base_of(experiment, place, data)
    except KanawaError:
        with problems.noted():
            raise
        # Without a config nothing more can be checked: earlier problems are reported with this one.
        problems.report()
        raise
    rule, counted = None, None
    with problems.noted():
        if place is not None:
            cfg, rule, counted = _for_target(cfg, place)
    with rewriting():
        for modifier, values in named:
            with problems.noted():
                # Modifiers may rewrite in place: only a copy shows what the last one replaced.
                before = cfg.clone()
                cfg = apply_modifier(cfg, modifier, values, "modifier")
                for line in undone(before, cfg, modifier):
                    logger.warning("%s", line)
    with origin("command line", "--set"):
        for override in overrides:
            with problems.noted():
                if isinstance(override, str):
                    apply_override(cfg, override)
                else:
                    cfg.set_path(*override)
    if rule is not None and place is not None:
        with problems.noted():
            for line in fit_cuts(cfg, counted, rule, place):
                logger.warning("%s", line)
    model = checked_model(name, cfg, place, counted, problems)
    problems.report()
    for line in unusual_values(cfg):
        logger.warning("%s", line)
    assigned = (one if isinstance(one, str) else f"{one[0]}={one[1]!r}" for one in overrides)
    changes = (*modifiers, *assigned, *([] if data is None else [data]))
    return Composition(name, cfg, place, rule, model, source, experiment, data, changes)


def catalogued(name: str, kind: str = "") -> list[object]:
    """Returns every component that `--set path=name` may mean, one of each kind: the field's type decides which.

    `kind` is the one that the field says it takes. Raises UnknownNameError for none.
    """
    states = host().components(kind or None)
    kinds = sorted({state.kind for state in states if state.name == name})
    if not kinds:
        label = kind.removesuffix("s").replace("_", " ") or "component"
        message = f"no {label} is named {name!r}{did_you_mean(name, {state.name for state in states})}"
        raise UnknownNameError(message)
    return [component(kind, name) for kind in kinds]


def _for_target(cfg: Config, target: Target) -> tuple[Config, MeshRule | None, Any]:
    """Returns the config for the target, the rule that made it so, and the model whose parameters the rule counted."""
    if "execution" not in cfg.fields():
        return cfg, None, None
    # An experiment that brings its own mesh wants no rule's modifiers either: they suit the rule's mesh.
    if cfg.execution.mesh is not None:
        return cfg, None, None
    from kanawa.module import count_parameters

    with blamed(cfg.model, "model"):
        model = cfg.model.build()
    rule = find_rule(target, count_parameters(model).total)
    if rule is None:
        return cfg, None, model
    if target.jax_devices > 1:
        cfg, rule = fit_mesh(cfg, model, rule, target)
    with rewriting():
        for name, values in rule.modifiers:
            cfg = apply_modifier(cfg, name, dict(values), "mesh rule", provenance(rule), rule.distribution)
    return cfg, rule, model
