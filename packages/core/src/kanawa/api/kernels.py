"""`kn.kernels`: which kernel each operation of an experiment gets on a target, and why not the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kanawa.api.experiment import Experiment, Modify, Set, experiment
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.composition.prepare import prepare
from kanawa.composition.target import Target
from kanawa.config import Config
from kanawa.errors import KernelError
from kanawa.kernels.choice import KernelChoice


def kernels(
    what: str | Path | Config | Experiment,
    *,
    on: str | Target | None = None,
    program: str = "train_step",
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
    require_fused: bool = False,
) -> list[KernelChoice]:
    """Returns the kernel of each operation's call in a program, with the refusals of those ranked above it.

    Nothing runs, and neither the target nor a library of its platform is needed. `on` is the experiment's own target,
    else "cpu". The other arguments are those of `kn.experiment`; `require_fused` raises a KernelError that lists every
    call that gets no fused kernel on a platform that has them.
    """
    asked = experiment(what, modify=modify, set=set, data=data, on=on)
    if asked.target is None:
        asked = asked.for_target("cpu")
    choices = chosen_kernels(asked.composition, program)
    if require_fused:
        check_fused(choices)
    return choices


def chosen_kernels(composition: Composition, program: str) -> list[KernelChoice]:
    """Returns the kernels that a program gets on the composition's target, fused or not."""
    where = environment(composition, "abstract")
    # A fallback is listed with all others, and judged after: an error at the first one would hide the rest.
    policy = dataclasses.replace(where.plan.kernels, survey=True, require_fused=False)
    where = dataclasses.replace(where, plan=dataclasses.replace(where.plan, kernels=policy))
    return list(prepare(composition, where=where).program(program).kernels())


def check_fused(choices: Sequence[KernelChoice]) -> None:
    """Raises KernelError naming every call that got no fused kernel where its platform has one."""
    fallbacks = [choice for choice in choices if choice.fallback]
    if fallbacks:
        lines = [f"{choice.operation} {choice.problem} gets {choice.kernel}" for choice in fallbacks]
        message = "\n  ".join(
            [
                f"{len(fallbacks)} of {len(choices)} calls get no fused kernel; change the problem so that one "
                "applies, or install a backend that has one:",
                *lines,
            ]
        )
        raise KernelError(message)
