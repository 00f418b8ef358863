"""A job as a SkyPilot task, and the fields of it that we write as a strict schema. Pure functions."""

import re
import shlex
from typing import Any

from kanawa_runtime.exit_codes import FIRST_INFRASTRUCTURE, LAST, STOPPED
from kanawa_runtime.launch.command import line_problems
from kanawa_runtime.launch.job import Job, chips_per_host, device_environment, hosts, joining, target
from kanawa_runtime.launch.strict import schema_problems

PORT = 8476
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_RETRIED = [STOPPED, *range(FIRST_INFRASTRUCTURE, LAST + 1)]
#: SkyPilot's names of chips whose names aren't ours in capitals.
_CHIPS = {"a100": "A100-80GB", "a100_40gb": "A100", "trn1": "Trainium", "trn2": "Trainium2"}
_TPUS = {"v5e": "tpu-v5litepod", "v4": "tpu-v4", "v5p": "tpu-v5p", "v6e": "tpu-v6e"}


def task(job: Job, cfg: Any) -> dict[str, Any]:
    """Returns the task; `cfg` is the launcher's config."""
    is_tpu = target(job).device.platform == "tpu"
    parts: dict[str, Any] = {"name": job.name, "resources": _resources(job, cfg)}
    # A slice is one node to SkyPilot, which starts the command on each of its hosts.
    parts["num_nodes"] = 1 if is_tpu else hosts(job)
    variables = {"KANAWA_JOB": job.name} | device_environment(job) | dict(job.environment)
    parts["envs"] = variables
    if cfg.secrets:
        # Without a value: submitting fails where the shell has none.
        parts["secrets"] = dict.fromkeys(cfg.secrets)
    if cfg.mounts:
        parts["file_mounts"] = dict(cfg.mounts)
    if cfg.setup:
        parts["setup"] = "\n".join(cfg.setup) + "\n"
    gang = joining(job, f'"$first:{PORT}"', '"$SKYPILOT_NODE_RANK"')
    joined = f" {gang[0]} {gang[1]} {shlex.join(gang[2:-1])} {gang[-1]}" if gang else ""
    first = 'first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n' if gang else ""
    parts["run"] = f"{first}exec {shlex.join(job.command)}{joined}\n"
    return parts


def _resources(job: Job, cfg: Any) -> dict[str, Any]:
    wanted = target(job)
    platform, name = wanted.device.platform, wanted.device.name
    asked: dict[str, Any] = {"infra": cfg.infra} if cfg.infra else {}
    if platform == "tpu":
        count = wanted.chips * (wanted.device.cores_per_unit if wanted.device.counted == "cores" else 1)
        asked["accelerators"] = f"{_TPUS[name]}-{count}"
    elif platform != "cpu":
        asked["accelerators"] = f"{_CHIPS.get(name, name.upper())}:{chips_per_host(job)}"
    # At least so much: what a cloud sells rarely fits exactly.
    for ours, theirs in (("cpu", "cpus"), ("memory", "memory")):
        if ours in job.resources:
            asked[theirs] = f"{job.resources[ours].removesuffix('Gi')}+"
    if job.image:
        asked["image_id"] = f"docker:{job.image}"
    asked["use_spot"] = job.spot
    recovery: dict[str, Any] = {"strategy": cfg.strategy, "max_restarts_on_errors": 0}
    if job.retries:
        # Lost machines are recovered from in any case; these are the codes of processes.
        recovery["recover_on_exit_codes"] = _RETRIED
    return asked | {"job_recovery": recovery}


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
