"""The job: what runs, on what, and how it is treated; every launcher renders the same record."""

import json
import re
from collections.abc import Iterator
from typing import Any

from kanawa.composition.target import Target, parse_target
from kanawa.config import REQUIRED, Config, Count, Size, from_json, to_json
from kanawa.errors import UsageError

#: DNS labels: what pods, services and most systems accept as a name.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

#: Variables by which a process knows its job.
OURS = frozenset({"KANAWA_JOB", "KANAWA_ATTEMPT", "KANAWA_SLICE"})


class Job(Config):
    """A command on hosts.

    `command` runs once a process. Where `is_gang`, each gets `--coordinator`, `--processes` and `--process-id` as well;
    else the processes are replicas that don't know each other. `target` is empty where the hosts' own devices are to be
    found out. `run` is where the command keeps its state, which must outlive its machines. `resources` are those of one
    host, as Kubernetes writes them: {"cpu": "8", "memory": "64Gi"}. `grace_seconds` is the time between a request to
    stop and the end by force, `retries` how often the gang may be started again, `spares` how many hosts (or slices, of
    devices that are sold in slices) wait to take the place of one that failed. `replicas` are those of a server, each
    with hosts of its own.
    """

    name: str = REQUIRED
    command: list[str] = REQUIRED
    target: str = "cpu"
    is_gang: bool = True
    slices: Size = 1
    hosts_per_slice: Size = 1
    processes_per_host: Size = 1
    image: str = ""
    environment: dict[str, str] = {}
    resources: dict[str, str] = {}
    spot: bool = False
    queue: str = ""
    priority: str = ""
    grace_seconds: Size = 120
    retries: Count = 10
    run: str = ""
    spares: Count = 0
    replicas: Size = 1


def job_record(job: Job) -> dict[str, Any]:
    """Returns the job as files hold it."""
    record: dict[str, Any] = json.loads(json.dumps(to_json(job)))
    return record


def job_of(tree: Any) -> Job:
    """Returns the job of a record as `job_record` gives it; raises ConfigError, or UsageError for another config."""
    config = from_json(tree)
    if not isinstance(config, Job):
        message = f"the record holds a {type(config).__name__}, expected a Job"
        raise UsageError(message)
    return config


def hosts(job: Job) -> int:
    """Returns the machines of all slices, spares apart."""
    return job.slices * job.hosts_per_slice


def processes(job: Job) -> int:
    """Returns the processes of the gang."""
    return hosts(job) * job.processes_per_host


def target(job: Job) -> Target:
    """Returns the hardware the job runs on; raises TargetError. Without one, what this machine has: a CPU at least."""
    return parse_target(job.target or f"cpu-{processes(job)}")


def chips_per_host(job: Job) -> int:
    """Returns the accelerators of one host that the job uses."""
    return max(1, target(job).chips // hosts(job))


def device_environment(job: Job) -> dict[str, str]:
    """Returns what makes JAX see the devices of a CPU target, shared out among the processes; nothing for others."""
    wanted = target(job)
    if not job.target or wanted.device.platform != "cpu":
        return {}
    share = max(1, wanted.jax_devices // processes(job))
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={share}"}


def joining(job: Job, coordinator: str, index: str) -> list[str]:
    """Returns the arguments by which a process joins the others; none where it is alone.

    `coordinator` and `index` may be expressions of the shell that starts it.
    """
    if not job.is_gang or processes(job) == 1:
        return []
    return ["--coordinator", coordinator, "--processes", str(processes(job)), "--process-id", index]


def problems_of_any(job: Job) -> Iterator[str]:
    """Yields what is wrong with a job on any launcher, one sentence each."""
    if not NAME.fullmatch(job.name):
        yield (
            f"name {job.name!r} is no DNS label: small letters, digits and '-', at most 63, from a letter to no '-'; "
            "give another with --name"
        )
    if not job.command:
        yield "command is empty; expected something like ['kanawa', 'train', 'quickstart']"
    for name in job.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"environment variable {name!r} can't be set by a shell; use letters, digits and '_'"
        if name in OURS:
            yield f"{name} is set for each process; leave --env {name} out"
    if job.is_gang and job.replicas > 1:
        yield f"{job.replicas} replicas of a gang: only a server has some; leave --replicas out"
    yield from _problems_of_the_target(job)


def _problems_of_the_target(job: Job) -> Iterator[str]:
    wanted = target(job)
    if wanted.device.platform == "cpu":
        if processes(job) > 1 and wanted.jax_devices % processes(job) and wanted.jax_devices > 1:
            yield (
                f"{wanted.jax_devices} devices of target {job.target} can't be split among {processes(job)} processes; "
                f"use --on cpu-{processes(job) * -(-wanted.jax_devices // processes(job))}"
            )
        return
    if (job.slices, hosts(job)) != (wanted.slices, wanted.hosts):
        yield (
            f"target {job.target} is {wanted.slices} slices and {wanted.hosts} hosts, the job has {job.slices} and "
            f"{hosts(job)}; leave --hosts out, or name another target with --on"
        )
    if chips_per_host(job) % job.processes_per_host:
        yield (
            f"{chips_per_host(job)} chips of a host of {job.target} can't be split among {job.processes_per_host} "
            "processes; one process a host is the usual"
        )
