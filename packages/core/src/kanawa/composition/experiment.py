"""`compose`: from an experiment's name to a frozen config, in one order, with every origin on record."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kanawa.composition.blame import blamed
from kanawa.composition.config_checks import Problems, checked_model, unusual_values
from kanawa.composition.mesh_rules import STAGE, find_rule, fit_cuts, fit_mesh, no_rule, provenance
from kanawa.composition.modifiers import apply_modifier, configured, parse_modifier
from kanawa.composition.naming import Base, base_of, with_other_data
from kanawa.composition.placement import PlacementQuestion, placed
from kanawa.composition.target import Target, parse_target
from kanawa.composition.undone import undone
from kanawa.config import Config, apply_override, connect_catalog, origin, rewriting
from kanawa.errors import KanawaError, TargetError, UnknownNameError, did_you_mean
from kanawa.plugins import MeshRule, component, host
from kanawa.plugins.discovery import CORE
from kanawa.plugins.records import Purpose
from kanawa.status import stage

logger = logging.getLogger(__name__)

#: "path=value" as `--set` has it, or a path with a value of Python.
Override: TypeAlias = str | tuple[str, Any]
#: A modifier's name and its fields as text.
_Named: TypeAlias = tuple[str, dict[str, str]]


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
    *,
    purpose: Purpose = "train",
    rule: MeshRule | None = None,
) -> Composition:
    """Returns the composition: experiment, data, mesh rule, modifiers, then `--set` overrides, checked and frozen.

    `experiment` is a catalogued experiment or model, a folder with a model, or a config; `data` puts it on other
    data (`ExperimentTemplate.with_data`), after modifiers that choose the model (`Modifier.before_data`). A `rule`
    takes the place of the one that would be chosen for `purpose`.
    Raises a CompositionError with all problems; a single one is raised as the step raised it.
    """
    with stage(f"composing {experiment if isinstance(experiment, str) else type(experiment).__qualname__}"):
        return _compose(experiment, target, modifiers, overrides, data, purpose, rule)


def _compose(
    experiment: str | Config,
    target: str | Target | None,
    modifiers: Sequence[str],
    overrides: Sequence[Override],
    data: str | None,
    purpose: Purpose,
    rule: MeshRule | None,
) -> Composition:
    problems, said = Problems(), set[str]()
    # What a row holds and how large it is follows from the model, which the first of these choose.
    first, rest = list[_Named](), list[_Named]()
    place: Target | None = None
    with problems.noted():
        place = parse_target(target) if isinstance(target, str) else target
    # Names are read from the catalog, never written: a config's text must not depend on what is installed.
    connect_catalog(load=catalogued)
    for text in modifiers:
        with problems.noted():
            name, values = parse_modifier(text)
            (first if configured(name, values).before_data else rest).append((name, values))
    try:
        base = base_of(experiment, place)
        base = base._replace(config=_modified(base.config, first, problems, said))
        if data is not None:
            base = with_other_data(base, data)
    except KanawaError:
        with problems.noted():
            raise
        # Without a config nothing more can be checked: earlier problems are reported with this one.
        problems.report()
        raise
    assigned = (one if isinstance(one, str) else f"{one[0]}={one[1]!r}" for one in overrides)
    changes = (*modifiers, *assigned, *([] if data is None else [data]))
    steps = _Steps(base, experiment, data, place, tuple(rest), tuple(overrides), changes, purpose, said=said)
    return steps.composed(problems, rule)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """An experiment before its target, on its data, and what follows: a rule, modifiers, overrides, checks."""

    base: Base
    asked: str | Config
    data: str | None
    target: Target | None
    named: tuple[_Named, ...]
    overrides: tuple[Override, ...]
    changes: tuple[str, ...]
    purpose: Purpose
    #: The model that was built last: a large one takes a second, and most choices of a placement leave it as it is.
    built: list[Any] = dataclasses.field(default_factory=list)
    #: What was warned of: each choice of a placement is composed as the user's command is.
    said: set[str] = dataclasses.field(default_factory=set)

    def composed(self, problems: Problems, rule: MeshRule | None = None) -> Composition:
        """Returns the composition with this rule, or with the one that suits the target; raises what was noted."""
        cfg, model = self.base.config.clone(), None
        with problems.noted():
            if self.target is not None:
                cfg, rule, model = self._for_target(cfg, self.target, rule)
        cfg, model = self._changed(cfg, problems), model or next(iter(self.built), None)
        if rule is not None and self.target is not None:
            # The last one may have been cut into stages, which this one isn't.
            model = _model_of(cfg, model)
            with problems.noted():
                _warn(self.said, fit_cuts(cfg, model, rule, self.target))
        model = checked_model(self.base.name, cfg, self.target, model, problems)
        self.built[:] = [model]
        problems.report()
        _warn(self.said, unusual_values(cfg))
        name, source = self.base.name, self.base.source
        return Composition(name, cfg, self.target, rule, model, source, self.asked, self.data, self.changes)

    def _changed(self, cfg: Config, problems: Problems) -> Config:
        """Returns the config with the user's modifiers and overrides."""
        cfg = _modified(cfg, self.named, problems, self.said)
        with origin("command line", "--set"):
            for override in self.overrides:
                with problems.noted():
                    if isinstance(override, str):
                        apply_override(cfg, override)
                    else:
                        cfg.set_path(*override)
        return cfg

    def _for_target(self, cfg: Config, target: Target, rule: MeshRule | None) -> tuple[Config, MeshRule | None, Any]:
        """Returns the config for the target, the rule that made it so, and the model whose parameters were counted."""
        if "execution" not in cfg.fields():
            return cfg, None, None
        # An experiment that brings its own mesh wants no rule's modifiers either: they suit the rule's mesh.
        if cfg.execution.mesh is not None:
            return cfg, None, None
        if rule is not None:
            return _with_rule(cfg, rule), rule, None
        from kanawa.module import count_parameters

        with blamed(cfg.model, "model"):
            model = cfg.model.build()
        self.built[:] = [model]
        rule = find_rule(target, count_parameters(model).total)
        if target.jax_devices > 1:
            fitted = cfg
            if rule is not None:
                fitted, rule = fit_mesh(cfg, model, rule, target)
            if rule is None or rule.distribution:
                choice = placed(PlacementQuestion(target, self.purpose, rule, self._config, self._with_rule))
                if choice is not None:
                    return _with_rule(cfg, choice), choice, model
            if rule is None:
                raise no_rule(target, count_parameters(model).total)
            cfg = fitted
        return cfg if rule is None else _with_modifiers(cfg, rule), rule, model

    def _config(self, rule: MeshRule) -> Config:
        problems = Problems()
        cfg = self._changed(_with_rule(self.base.config.clone(), rule), problems)
        problems.report()
        return cfg

    def _with_rule(self, rule: MeshRule) -> Composition:
        return self.composed(Problems(), rule)


def _modified(cfg: Config, named: Iterable[_Named], problems: Problems, said: set[str]) -> Config:
    """Returns the config rewritten by the user's modifiers, in their order; notes problems and logs what is undone."""
    with rewriting():
        for modifier, values in named:
            with problems.noted():
                # Modifiers may rewrite in place: only a copy shows what the last one replaced.
                before = cfg.clone()
                cfg = apply_modifier(cfg, modifier, values, "modifier")
                _warn(said, undone(before, cfg, modifier))
    return cfg


def _warn(said: set[str], lines: Iterable[str]) -> None:
    """Logs lines that weren't said yet."""
    for line in lines:
        if line not in said:
            said.add(line)
            logger.warning("%s", line)


def _model_of(cfg: Config, built: Any) -> Any:
    """Returns the config's model, which may be `built`; None where it can't be built, which is reported later."""
    if "model" not in cfg.fields() or (built is not None and built.config == cfg.model):
        return built
    try:
        return cfg.model.build()
    except KanawaError:
        return None


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


def _with_rule(cfg: Config, rule: MeshRule) -> Config:
    """Returns the config with the mesh and the modifiers of a rule that was chosen for it."""
    arguments = {"axes": dict(rule.mesh), "dcn_axes": dict(rule.dcn)}
    placed_cfg = apply_modifier(cfg, "mesh", arguments, STAGE, provenance(rule), CORE)
    return _with_modifiers(placed_cfg, rule)


def _with_modifiers(cfg: Config, rule: MeshRule) -> Config:
    with rewriting():
        for name, values in rule.modifiers:
            cfg = apply_modifier(cfg, name, dict(values), STAGE, provenance(rule), rule.distribution)
    return cfg
