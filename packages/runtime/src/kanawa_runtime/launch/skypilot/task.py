"""A job as a SkyPilot task. Pure functions."""

import shlex
from typing import Any

from kanawa_runtime.exit_codes import FIRST_INFRASTRUCTURE, LAST, STOPPED
from kanawa_runtime.launch.job import Job, chips_per_host, device_environment, hosts, joining, target

PORT = 8476
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
