"""`ray`: jobs on a Ray cluster that is there."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.config import NonNegative, Positive

from kanawa_runtime.launch.client import LauncherError
from kanawa_runtime.launch.job import Job, hosts, job_record
from kanawa_runtime.launch.launcher import Launcher, Status
from kanawa_runtime.launch.ray.needs import bundle, problems_of_ray

_FILE = "ray.json"
_SECONDS = 60.0


class RayLauncher(Launcher):
    """A gang of actors, one for each process, with a detached actor that restarts them; named by the job's name."""

    title = "ray"
    secrets_by = "export it where Ray's nodes are started, from which processes inherit it"

    class Config(Launcher.Config):
        #: Of the cluster; "auto" is the one this machine belongs to.
        address: str = "auto"
        poll_seconds: Positive = 1.0
        settle_seconds: NonNegative = 30.0
        backoff_seconds: NonNegative = 1.0
        most_backoff_seconds: NonNegative = 60.0

    def render(self, job: Job) -> dict[str, str]:
        """Returns what the detached actor is made with: the job, a bundle of resources a host, its settings."""
        return {_FILE: json.dumps(self._facts(job), indent=1) + "\n"}

    def _facts(self, job: Job) -> dict[str, Any]:
        cfg = self.config
        settings = {
            "settle_seconds": cfg.settle_seconds,
            "backoff_seconds": cfg.backoff_seconds,
            "most_backoff_seconds": cfg.most_backoff_seconds,
            "runtime_env": {"image_uri": job.image} if job.image else {},
        }
        return {"job": job_record(job), "bundles": [bundle(job)] * hosts(job), "settings": settings}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Ray can't do."""
        yield from problems_of_ray(job, "every idle node of the cluster is one; leave --spares out")

    def submit(self, job: Job, folder: Path) -> str:
        """Starts the detached actor; one of this name that still runs is left as it is."""
        from kanawa_runtime.launch.ray.gang import NAMESPACE, Gang

        ray = connected(self.config.address)
        facts = json.loads((folder / _FILE).read_text())
        gang = ray.remote(Gang).options(
            name=job.name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=8,
            # Where its host is lost it starts elsewhere, and calls wait for it.
            max_restarts=-1,
            max_task_retries=-1,
            get_if_exists=True,
        )
        if self._gang(job.name) is None or self.status(job.name).ended:
            self._dismiss(job.name)
        ray.get(gang.remote(facts["job"], facts["bundles"], facts["settings"]).status.remote())
        return job.name

    def status(self, name: str) -> Status:
        """Returns what the actor says, or what the cluster stored of its end."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        if gang is None:
            return Status(**self._last_record(name)["facts"])
        try:
            facts = ray.get(gang.status.remote(), timeout=_SECONDS)
        except ray.exceptions.RayError as error:
            return Status("restarting", detail=f"its actor gives no answer: {type(error).__name__}")
        return Status(**{key: value for key, value in facts.items() if key != "pids"})

    def logs(self, name: str) -> str:
        """Returns the newest of what the first process wrote."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        if gang is None:
            return str(self._last_record(name)["said"])
        try:
            return str(ray.get(gang.logs.remote(), timeout=_SECONDS))
        except ray.exceptions.RayError as error:
            message = f"the actor of {name} gives no answer ({type(error).__name__}): Ray may be starting it elsewhere"
            raise LauncherError(message) from error

    def cancel(self, name: str) -> None:
        """Asks the gang to save, waits until its processes have ended, and lets its actor go."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        if gang is None:
            self._last_record(name)
            return
        ray.get(gang.stop.remote(), timeout=_SECONDS)
        while not self.status(name).ended:
            time.sleep(min(0.2, self.config.poll_seconds))
        self._dismiss(name)

    def _gang(self, name: str) -> Any:
        """Returns the job's actor, None where there is none now."""
        from kanawa_runtime.launch.ray.gang import NAMESPACE

        try:
            return connected(self.config.address).get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return None

    def _dismiss(self, name: str) -> None:
        """Ends the actor of a job that has ended, and waits until its name is free."""
        gang = self._gang(name)
        if gang is not None:
            connected(self.config.address).kill(gang)
            while self._gang(name) is not None:
                time.sleep(0.05)

    def _last_record(self, name: str) -> dict[str, Any]:
        from kanawa_runtime.launch.ray.gang import last_record

        record = last_record(name)
        if record is None:
            message = f"this Ray cluster has no job {name!r}, and had none; `kanawa launch ray EXPERIMENT` starts one"
            raise LauncherError(message)
        return record


def connected(address: str) -> Any:
    """Returns Ray, connected; raises LauncherError."""
    try:
        import ray
    except ModuleNotFoundError as error:
        message = "Ray is missing: pip install 'kanawa-runtime[ray]', the version of the cluster"
        raise LauncherError(message) from error
    from kanawa_runtime.launch.ray.gang import NAMESPACE

    if not ray.is_initialized():
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
        except (ConnectionError, RuntimeError) as error:
            message = (
                f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or give "
                "its address with --option address=ray://HOST:10001"
            )
            raise LauncherError(message) from error
    return ray


def ray_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of a Ray that is installed: an actor that was lost, a call without an answer."""
    import ray

    return (ray.exceptions.RayError,)
