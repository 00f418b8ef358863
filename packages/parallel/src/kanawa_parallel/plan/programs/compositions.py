"""Compositions of an experiment with each target; the problems of all targets are reported at once.

Sizes that a mesh doesn't divide are found by `divisibility` while composing.
"""

from collections.abc import Sequence

from kanawa.composition.experiment import Composition, compose
from kanawa.errors import CompositionError, KanawaError
from kanawa.plugins import host


def compositions(
    experiment: str,
    targets: Sequence[str],
    modifiers: Sequence[str],
    overrides: Sequence[str],
    data: str | None = None,
) -> list[Composition]:
    """Returns one composition a target; raises CompositionError with all problems of all targets at once."""
    composed: list[Composition] = []
    problems: list[str] = []
    for selector in targets:
        try:
            composition = compose(experiment, selector, modifiers, overrides, data)
        except CompositionError as error:
            problems += [f"--on {selector}: {problem}" for problem in error.problems]
        except KanawaError as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            problems.append(f"--on {selector}: {error} {notes}".rstrip())
        else:
            problems += [f"--on {selector}: {problem}" for problem in _unspread(composition)]
            composed.append(composition)
    if problems:
        raise CompositionError(list(dict.fromkeys([*problems, *missing_compilers(composed)])))
    return composed


def missing_compilers(composed: Sequence[Composition]) -> list[str]:
    """Returns each backend's reason why it can't compile for a target: no compiler installed, or no such topology."""
    problems = []
    # The largest first: a process can't get more devices once JAX has started.
    for target in sorted((each.required_target() for each in composed), key=lambda each: -each.jax_devices):
        try:
            host().collect("kanawa_topology", target=target)
        except KanawaError as error:
            problems.append(str(error))
    return problems


def _unspread(composition: Composition) -> list[str]:
    target, execution = composition.target, composition.config.execution
    if target is None or execution.mesh is not None or target.jax_devices == 1:
        return []
    return [
        f"execution.mesh is unset, but {target.selector} has {target.jax_devices} devices; choose axes, such as "
        '--modify mesh:axes={"fsdp":-1}'
    ]
