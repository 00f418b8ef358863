"""`skypilot`: managed jobs by `sky jobs`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kanawa_runtime.launch.client import LauncherError, call, to_yaml
from kanawa_runtime.launch.job import Job, target
from kanawa_runtime.launch.launcher import Launcher, State, Status
from kanawa_runtime.launch.skypilot.task import task

_SKY = "pip install 'skypilot[aws]' or another of its clouds, and `sky check`"
_FILE = "task.yaml"
#: The words of `sky jobs queue`.
_STATES: dict[str, State] = {
    "PENDING": "queued",
    "SUBMITTED": "queued",
    "STARTING": "queued",
    "RUNNING": "running",
    "RECOVERING": "restarting",
    "CANCELLING": "running",
    "CANCELLED": "cancelled",
    "SUCCEEDED": "done",
}


class SkyPilotLauncher(Launcher):
    """A managed job of SkyPilot, which recovers lost machines and starts again what ends by a retryable code.

    It has no bound for those: `retries` of 0 leaves the recovery of processes out, any other number leaves it on.
    """

    title = "skypilot"
    secrets_by = "give --option 'secrets=[\"NAME\"]', whose value SkyPilot takes from this shell"

    class Config(Launcher.Config):
        #: Where, such as `gcp/us-east5` or `kubernetes`; empty for the cheapest that has it.
        infra: str = ""
        strategy: Literal["FAILOVER", "EAGER_NEXT_REGION"] = "FAILOVER"
        #: Lines that prepare a new machine, such as `pip install kanawa[train,gpu]`.
        setup: list[str] = []
        #: Path on each machine to the bucket that is mounted there: {"/runs": "gs://bucket"}.
        mounts: dict[str, str] = {}
        #: Variables of this shell that hold secrets: SkyPilot hands them on, no file holds them.
        secrets: list[str] = []

    def render(self, job: Job) -> dict[str, str]:
        """Returns the task."""
        return {_FILE: to_yaml(task(job, self.config))}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what SkyPilot can't do."""
        wanted = target(job)
        if wanted.device.platform == "tpu" and wanted.slices > 1:
            yield f"target {job.target}: a task is one slice here; use jobset or pathways for {wanted.slices}"
        if job.processes_per_host > 1:
            yield f"{job.processes_per_host} processes a host: SkyPilot starts one on each; leave --processes out"
        if "://" not in job.run and not any(job.run.startswith(path.rstrip("/") + "/") for path in self.config.mounts):
            yield (
                f"run {job.run!r} would be lost with its machine; give a bucket (gs://, s3://), or mount one: "
                '--option \'mounts={"/runs": "gs://BUCKET"}\' --run /runs/NAME'
            )
        for name, given in (("queue", job.queue), ("priority", job.priority)):
            if given:
                yield f"{name} {given!r}: a task has none; leave --{name} out"
        if job.spares:
            yield f"{job.spares} spares: it looks for a new machine when one is lost; leave --spares out"
        wrong = [
            name
            for name in self.config.secrets
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or name in job.environment
        ]
        yield from (f"secret {name!r}: expected a variable of this shell that --env doesn't give" for name in wrong)
        for name, pattern in (("cpu", r"\d+(\.\d+)?"), ("memory", r"\d+(\.\d+)?(Gi)?")):
            amount = job.resources.get(name, "1")
            if not re.fullmatch(pattern, amount):
                yield f"{name} {amount!r}: SkyPilot takes a number, memory in Gi; give --resource {name}=64"
        words = (
            ("infra", self.config.infra),
            ("image", job.image),
            *(("mounts", to) for to in self.config.mounts.values()),
        )
        yield from (f"{name} {text!r} holds a blank; give one word" for name, text in words if re.search(r"\s", text))
        yield from (
            f"mounts {path!r}: expected an absolute path; give one" for path in self.config.mounts if path[:1] != "/"
        )
        unknown = sorted(set(job.resources) - {"cpu", "memory"})
        if unknown:
            yield f"resources {', '.join(unknown)}: a task takes cpu, and memory in Gi"

    def submit(self, job: Job, folder: Path) -> str:
        """Submits the task; a job of this name that still runs is left as it is."""
        if self._state(job.name) is None or self.status(job.name).ended:
            secrets = [word for name in self.config.secrets for word in ("--secret", name)]
            command = ["sky", "jobs", "launch", "--yes", "--detach-run", "--name", job.name, *secrets]
            call([*command, str(folder / _FILE)], _SKY)
        return job.name

    def status(self, name: str) -> Status:
        """Returns what SkyPilot's queue says of the newest job of this name."""
        word = self._state(name)
        if word is None:
            message = f"SkyPilot has no job {name!r}; `sky jobs queue` lists them"
            raise LauncherError(message)
        return Status(_STATES.get(word, "failed"), detail=word)

    def logs(self, name: str) -> str:
        """Returns what the job wrote."""
        return call(["sky", "jobs", "logs", "--name", name, "--no-follow"], _SKY)

    def cancel(self, name: str) -> None:
        """Cancels the job; SkyPilot ends its machines."""
        call(["sky", "jobs", "cancel", "--yes", "--name", name], _SKY)

    def _state(self, name: str) -> str | None:
        """Returns the word of the first row with this name: the queue lists the newest first."""
        known = {*_STATES, *(f"FAILED{more}" for more in ("", "_SETUP", "_PRECHECKS", "_NO_RESOURCE", "_CONTROLLER"))}
        for line in call(["sky", "jobs", "queue"], _SKY).splitlines():
            words = line.split()
            if name in words:
                return next((word for word in words if word in known), None)
        return None
