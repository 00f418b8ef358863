"""What is planned: an experiment with its changes, and which of its programs.

Sizes that a mesh doesn't divide are found by `divisibility` while composing.
"""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, TextIO

from kanawa.composition.experiment import Composition, compose
from kanawa.errors import CompositionError, KanawaError
from kanawa.plugins import MeshRule, host
from kanawa.plugins.records import Purpose
from kanawa.status import stage, waits_for

from kanawa_parallel.plan.programs.decode import DECODE

#: Characters of a failed process's errors that are reported: compilers warn by the megabyte.
_MAX_ERROR_CHARACTERS = 4000
#: What `kanawa.status.stage_lines` writes.
_STAGE = re.compile(r"\d+ s: ")


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """The arguments of `plan` that say what is planned, apart from the target."""

    experiment: str
    modifiers: Sequence[str] = ()
    overrides: Sequence[str] = ()
    data: str | None = None
    program: str = "train_step"

    def composed(
        self, targets: Sequence[str], changes: Sequence[str] = (), rule: MeshRule | None = None
    ) -> list[Composition]:
        """Returns one composition a target, with more modifiers; with this rule instead of the target's own.

        Raises CompositionError with all problems of all targets at once.
        """
        composed: list[Composition] = []
        problems: list[str] = []
        purpose: Purpose = "decode" if self.program == DECODE else "train"
        for selector in targets:
            modifiers = [*self.modifiers, *map(_spelled, changes)]
            try:
                composition = compose(
                    self.experiment, selector, modifiers, self.overrides, self.data, purpose=purpose, rule=rule
                )
            except CompositionError as error:
                problems += [f"--on {selector}: {problem}" for problem in error.problems]
            except KanawaError as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                problems.append(f"--on {selector}: {error} {notes}".rstrip())
            else:
                problems += _unspread(composition)
                composed.append(composition)
        if problems:
            raise CompositionError(list(dict.fromkeys([*problems, *missing_compilers(composed)])))
        return composed

    def words(self, target: str, changes: Sequence[str] = ()) -> list[str]:
        """Returns the words of a command line that say the same."""
        words = [self.experiment, "--on", target]
        words += [word for each in (*self.modifiers, *map(_spelled, changes)) for word in ("--modify", each)]
        words += [word for each in self.overrides for word in ("--set", each)]
        return words if self.data is None else [*words, "--data", self.data]

    def planned_apart(self, target: str, changes: Sequence[str] = (), flags: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the JSON of one target's plan, made in a process of its own, with more modifiers and flags of `plan`.

        Compilers don't free memory, and JAX can't change its device count. If the process fails, the record has
        "error": the other targets' plans are worth having.
        """
        command = [sys.executable, "-P", "-m", "kanawa.cli", "plan", *self.words(target, changes), "--json", *flags]
        command += ["--serve"] if self.program == DECODE else []
        with tempfile.TemporaryFile("w+") as out, stage(f"planning {self.experiment} for {target}"):
            code, errors = _followed(command, out)
            if code:
                message = f"planning {self.experiment} failed (exit code {code}): {errors.strip()}"
                return {"experiment": self.experiment, "target": target, "error": message}
            out.seek(0)
            plan: dict[str, Any] = json.load(out)
        return plan


def _followed(command: Sequence[str], out: TextIO) -> tuple[int, str]:
    """Runs a command that writes to `out`; returns its exit code and the end of its errors.

    While it runs, what its own lines of stages say is what this process waits for.
    """
    errors = ""
    with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            for line in process.stderr or ():
                errors = (errors + line)[-_MAX_ERROR_CHARACTERS:]
                if _STAGE.match(line):
                    waits_for(f"process {process.pid}, which says: {line.strip()}")
        except BaseException:
            process.kill()
            raise
    return process.returncode, errors


def _spelled(change: str) -> str:
    """Returns a change of our own with its modifier's full name, if another distribution claims the bare one."""
    name, colon, values = change.partition(":")
    return host().spelled("modifiers", name, "kanawa-parallel") + colon + values


def missing_compilers(composed: Sequence[Composition]) -> list[str]:
    """Returns each backend's reason why it can't compile for a target: no compiler installed, or no such topology."""
    problems = []
    # The largest first: a process can't get more devices once JAX has started.
    for target in sorted((each.required_target() for each in composed), key=lambda each: -each.jax_devices):
        try:
            with stage(f"starting the compiler for {target.selector}"):
                host().collect("kanawa_topology", target=target)
        except KanawaError as error:
            problems.append(str(error))
    return problems


def _unspread(composition: Composition) -> list[str]:
    target, execution = composition.required_target(), composition.config.execution
    if execution.mesh is not None or target.jax_devices == 1:
        return []
    return [
        f"--on {target.selector}: execution.mesh is unset, but {target.selector} has {target.jax_devices} devices; "
        'choose axes, such as --modify mesh:axes={"fsdp":-1}'
    ]
