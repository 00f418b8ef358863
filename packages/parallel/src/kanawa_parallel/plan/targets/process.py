"""Plans one target in a process of its own: compilers don't free memory, and JAX can't change its device count."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from kanawa.status import stage

from kanawa_parallel.plan.targets.request import PlanRequest

#: Characters of a failed process's errors that are reported: compilers warn by the megabyte.
_MAX_ERROR_CHARACTERS = 4000


def plan_in_process(
    request: PlanRequest, target: str, changes: Sequence[str] = (), flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the JSON of one target's plan, with more modifiers and flags of `plan`.

    If the process fails, the record has "error": the other targets' plans are worth having.
    """
    command = [sys.executable, "-m", "kanawa.cli", "plan", *request.words(target, changes), "--json", *flags]
    command += ["--serve"] if request.serves else []
    with tempfile.TemporaryFile("w+") as errors:
        with stage(f"planning {request.experiment} for {target}"):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        errors.seek(0)
        if done.returncode:
            output = errors.read()[-_MAX_ERROR_CHARACTERS:].strip()
            message = f"planning {request.experiment} failed (exit code {done.returncode}): {output}"
            return {"experiment": request.experiment, "target": target, "error": message}
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan
