"""Whether what a distribution requires is installed: one level deep, before any import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def unmet_requirements(requires: Iterable[str], version_of: Callable[[str], str | None]) -> list[str]:
    """Returns one sentence for each requirement that holds without extras and is not met.

    Args:
        requires: `Requires-Dist` values.
        version_of: gives the installed version of a distribution, or None.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    problems = []
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            problems.append(f"its requirement {text!r} can't be read ({error})".replace("\n", " "))
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        problem = _problem(requirement, version_of)
        if problem:
            problems.append(problem)
    return problems


def _problem(requirement: Requirement, version_of: Callable[[str], str | None]) -> str:
    """Returns what is wrong with one requirement, or an empty string."""
    wanted = f"{requirement.name}{requirement.specifier}"
    found = version_of(requirement.name)
    if found is None:
        return f"needs {wanted}, which is not installed"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"needs {wanted}, found {found}"
    return ""
