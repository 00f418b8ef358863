"""The fields of a SkyPilot task that we write, as a strict schema, and what must hold between them."""

import re
from typing import Any

from kanawa_runtime.exit_codes import FIRST_INFRASTRUCTURE, LAST, STOPPED

from .command import line_problems
from .schema import schema_problems

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_RETRIED = [STOPPED, *range(FIRST_INFRASTRUCTURE, LAST + 1)]


def _object(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_WORD = {"type": "string", "pattern": r"^\S+$"}
_AMOUNT = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\+?$"}
_CODES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 255},
    "minItems": 1,
    "uniqueItems": True,
}
_RECOVERY = _object(
    {
        "strategy": {"enum": ["FAILOVER", "EAGER_NEXT_REGION"]},
        "max_restarts_on_errors": {"type": "integer", "minimum": 0},
    },
    {"recover_on_exit_codes": _CODES},
)
_RESOURCES = _object(
    {"use_spot": {"type": "boolean"}, "job_recovery": _RECOVERY},
    {
        "infra": _WORD,
        "accelerators": {"type": "string", "pattern": r"^(tpu-v[0-9a-z]+-[1-9][0-9]*|[A-Za-z0-9-]+:[1-9][0-9]*)$"},
        "cpus": _AMOUNT,
        "memory": _AMOUNT,
        "image_id": {"type": "string", "pattern": r"^docker:\S+$"},
    },
)
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TASK = _object(
    {
        "name": {"type": "string", "pattern": r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"},
        "resources": _RESOURCES,
        "num_nodes": {"type": "integer", "minimum": 1},
        "envs": {**_TEXTS, "propertyNames": {"pattern": VARIABLE}, "minProperties": 1},
        "run": {"type": "string", "minLength": 1},
    },
    {
        "secrets": {
            "type": "object",
            "propertyNames": {"pattern": VARIABLE},
            "additionalProperties": {"type": "null"},
            "minProperties": 1,
        },
        "setup": {"type": "string", "minLength": 1},
        "file_mounts": {**_TEXTS, "additionalProperties": _WORD, "propertyNames": {"pattern": "^/"}},
    },
)


def task_problems(given: Any) -> list[str]:
    """Returns what is wrong with a task: its fields first, then its command against its nodes."""
    wrong = schema_problems(given, TASK)
    if wrong:
        return wrong
    line, nodes = given["run"], given["num_nodes"]
    flag = re.search(r"--processes (\d+)", line)
    is_tpu = given["resources"].get("accelerators", "").startswith("tpu-")
    if flag and not is_tpu and int(flag[1]) != nodes:
        wrong.append(f"run: --processes {flag[1]}, but there are {nodes} nodes")
    if bool(flag) != ("SKYPILOT_NODE_IPS" in line) or (nodes > 1 and not flag and "kanawa train" in line):
        wrong.append(f"run: {nodes} nodes, and the command joins {flag[1] if flag else 'no'} processes by no address")
    wrong += [f"run: {problem}" for problem in line_problems(line.rstrip("\n"))]
    if given["envs"].get("KANAWA_JOB") != given["name"]:
        wrong.append(f"envs: KANAWA_JOB is {given['envs'].get('KANAWA_JOB')!r}, the task is called {given['name']!r}")
    codes = given["resources"]["job_recovery"].get("recover_on_exit_codes", _RETRIED)
    if codes != _RETRIED:
        wrong.append(f"recover_on_exit_codes: expected {STOPPED} and {FIRST_INFRASTRUCTURE} to {LAST}, worth a retry")
    return wrong
