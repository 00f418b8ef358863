"""`ray`: jobs on a Ray cluster that is there."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.config import NonNegative, Positive, to_json

from kanawa_runtime.launch.errors import EngineError
from kanawa_runtime.launch.job import Job, chips_per_host, hosts, target
from kanawa_runtime.launch.launcher import Launcher, Status

_FILE = "ray.json"
_RESOURCE = {"gpu": "GPU", "tpu": "TPU", "neuron": "neuron_cores"}
_SECONDS = 60.0


class RayLauncher(Launcher):
    """A gang of actors, one for each process, with a detached actor that restarts them; named by the job's name."""

    class Config(Launcher.Config):
        #: Of the cluster; "auto" is the one this machine belongs to.
        address: str = "auto"
        poll_seconds: Positive = 1.0
        settle_seconds: NonNegative = 30.0
        backoff_seconds: NonNegative = 1.0
        most_backoff_seconds: NonNegative = 60.0

    @property
    def engine(self) -> str:
        """Returns what to call it."""
        return "ray"

    def render(self, job: Job) -> dict[str, str]:
        """Returns what the detached actor is made with: the job, a bundle of resources a host, its settings."""
        cfg = self.config
        settings = {
            "settle_seconds": cfg.settle_seconds,
            "backoff_seconds": cfg.backoff_seconds,
            "most_backoff_seconds": cfg.most_backoff_seconds,
            "runtime_env": {"image_uri": job.image} if job.image else {},
        }
        facts = {"job": to_json(job), "bundles": [bundle(job)] * hosts(job), "settings": settings}
        return {_FILE: json.dumps(facts, indent=1) + "\n"}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Ray can't do."""
        for name, given in (("queue", job.queue), ("priority", job.priority)):
            if given:
                yield f"{name} {given!r}: Ray has none, it places what fits; leave --{name} out"
        if job.spot:
            yield "spot: which nodes there are is the cluster's own configuration; leave --spot out"
        if job.spares:
            yield f"{job.spares} spares: every idle node of the cluster is one; leave --spares out"
        if "://" not in job.run and not job.run.startswith("/"):
            yield f"run {job.run!r}: every node must find it; give an absolute path on a shared disk, or a bucket"
        wrong = sorted(name for name, amount in job.resources.items() if not _number(name, amount))
        yield from (
            f"resource {name}={job.resources[name]}: Ray takes numbers, and memory such as 64Gi" for name in wrong
        )

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
            get_if_exists=True,
        )
        if self._gang(job.name) is None or self.status(job.name).ended:
            self._dismiss(job.name)
        ray.get(gang.remote(facts["job"], facts["bundles"], facts["settings"]).status.remote())
        return job.name

    def status(self, name: str) -> Status:
        """Returns what the actor says, or what the cluster kept of its end."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        if gang is not None:
            facts = ray.get(gang.status.remote(), timeout=_SECONDS)
        else:
            facts = self._kept(name)["facts"]
        facts.pop("pids", None)
        return Status(**facts)

    def logs(self, name: str) -> str:
        """Returns the newest of what the first process wrote."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        return ray.get(gang.logs.remote(), timeout=_SECONDS) if gang is not None else self._kept(name)["said"]

    def cancel(self, name: str) -> None:
        """Asks the gang to save, waits until its processes have ended, and lets its actor go."""
        ray = connected(self.config.address)
        gang = self._gang(name)
        if gang is None:
            self._kept(name)
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

    def _kept(self, name: str) -> dict[str, Any]:
        from kanawa_runtime.launch.ray.gang import kept

        record = kept(name)
        if record is None:
            message = f"this Ray cluster has no job {name!r}, and had none; `kanawa launch ray EXPERIMENT` starts one"
            raise EngineError(message)
        return record


def connected(address: str) -> Any:
    """Returns Ray, connected; raises EngineError."""
    try:
        import ray
    except ModuleNotFoundError as error:
        message = "Ray is missing: pip install 'kanawa-runtime[ray]', the version of the cluster"
        raise EngineError(message) from error
    from kanawa_runtime.launch.ray.gang import NAMESPACE

    if not ray.is_initialized():
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
        except (ConnectionError, RuntimeError) as error:
            message = (
                f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or give "
                "its address with --option address=ray://HOST:10001"
            )
            raise EngineError(message) from error
    return ray


def bundle(job: Job) -> dict[str, float]:
    """Returns what one host of the placement group must have."""
    wanted = target(job)
    resources = {"CPU": 1.0} | {_NAMES.get(name, name): _number(name, amount) for name, amount in job.resources.items()}
    kind = _RESOURCE.get(wanted.device.platform)
    cores = wanted.device.jax_devices_per_chip if kind == "neuron_cores" else 1
    return resources | ({kind: float(chips_per_host(job) * cores)} if kind else {})


_NAMES = {"cpu": "CPU"}
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _number(name: str, amount: str) -> float:
    """Returns an amount as Ray counts it, 0 for one it can't read."""
    unit = amount[-2:]
    factor = _UNITS.get(unit, 1) if name == "memory" else 1
    digits = amount[:-2] if factor > 1 else amount
    return float(digits) * factor if digits.replace(".", "", 1).isdigit() else 0.0
