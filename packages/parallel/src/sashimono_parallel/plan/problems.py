"""Everything that is wrong with what was asked, found before anything compiles."""

from collections.abc import Sequence
from typing import Any

import jax
from sashimono.arrays.rules import check_divides, resolve
from sashimono.arrays.spec import ParamSpec
from sashimono.compose.experiment import Composition, compose
from sashimono.compose.target import Target, parse_target
from sashimono.contracts import BATCH_AXES
from sashimono.errors import CompositionError, SashimonoError
from sashimono.module import param_specs


def compositions(
    experiment: str, targets: Sequence[str], modifiers: Sequence[str], overrides: Sequence[str]
) -> list[Composition]:
    """Returns one composition a target; raises CompositionError with all problems of all targets at once."""
    found: list[Composition] = []
    problems: list[str] = []
    for selector in targets:
        try:
            target = parse_target(selector)
        except SashimonoError as error:
            problems.append(f"--on {selector}: {error}")
            continue
        try:
            composition = compose(experiment, target, modifiers, overrides)
        except CompositionError as error:
            problems += [f"--on {selector}: {problem}" for problem in error.problems]
            continue
        except SashimonoError as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            problems.append(f"--on {selector}: {error} {notes}".rstrip())
            continue
        problems += [f"--on {selector}: {problem}" for problem in placement_problems(composition, target)]
        found.append(composition)
    if problems:
        raise CompositionError(list(dict.fromkeys(problems)))
    return found


def placement_problems(composition: Composition, target: Target) -> list[str]:
    """Returns which sizes don't fit the mesh, each with its config path; the mesh itself first."""
    execution = composition.config.execution
    if execution.mesh is None:
        if target.jax_devices > 1:
            return [
                f"execution.mesh is unset, but {target.selector} has {target.jax_devices} devices; choose axes, "
                f'such as --modify mesh:axes={{"fsdp":-1}}'
            ]
        return []
    try:
        shape = execution.mesh.build().shape(target.jax_devices, target.slices)
    except SashimonoError as error:
        return str(error).splitlines()
    strategies = [strategy.build() for strategy in execution.strategies]
    rules = tuple(rule for s in strategies for rule in s.param_rules())
    activations = tuple(rule for s in strategies for rule in s.activation_rules())
    specs = param_specs(composition.config.model.build())
    leaves = jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    found = []
    for path, spec in leaves:
        name = ".".join(str(part.key) for part in path)
        found += _indivisible(spec.shape, spec.axes, rules, shape, f"model.{name}")
    config = composition.config
    if "batch_size" in config.fields() and "data" in config.fields():
        rows = (config.batch_size, config.data.sequence_length)
        axes = BATCH_AXES.input_ids
        found += _indivisible(rows, axes, activations, shape, "batch_size x data.sequence_length")
    return found


def _indivisible(shape: tuple[int, ...], axes: Any, rules: Any, mesh: Any, what: str) -> list[str]:
    try:
        check_divides(shape, axes, resolve(axes, rules, mesh), mesh, what)
    except SashimonoError as error:
        return str(error).splitlines()
    return []
