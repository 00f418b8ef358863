"""`ray-serve`: replicas of a server behind the proxies of Ray Serve, on a Ray cluster that is there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.config import Positive, Size

from kanawa_runtime.launch.errors import EngineError
from kanawa_runtime.launch.job import Job, hosts
from kanawa_runtime.launch.launcher import Launcher, State, Status
from kanawa_runtime.launch.ray.launcher import bundle, connected

_FILE = "serve.json"
_STATES: dict[str, State] = {
    "NOT_STARTED": "queued",
    "DEPLOYING": "queued",
    "RUNNING": "running",
    "UNHEALTHY": "restarting",
    "DEPLOY_FAILED": "failed",
    "DELETING": "cancelled",
}


class RayServeLauncher(Launcher):
    """An application of Ray Serve; it is named by the job's name. Ray's proxies, one a node, route and restart."""

    serves = True

    class Config(Launcher.Config):
        address: str = "auto"
        poll_seconds: Positive = 1.0
        port: Size = 8000
        host: str = "127.0.0.1"
        #: Under which path the application answers, where a cluster serves several.
        route_prefix: str = "/"
        #: Requests that a replica gets at once; what is beyond waits at the proxies.
        max_ongoing_requests: Size = 256

    @property
    def engine(self) -> str:
        """Returns what to call it."""
        return "ray-serve"

    def render(self, job: Job) -> dict[str, str]:
        """Returns what the application is made from."""
        words = job.command
        needs = bundle(job)
        others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU", "memory")}
        actor: dict[str, Any] = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0.0), "resources": others}
        if "memory" in needs:
            actor["memory"] = needs["memory"]
        actor["runtime_env"] = {"env_vars": dict(job.environment)} | ({"image_uri": job.image} if job.image else {})
        deployment = {
            "name": "server",
            "num_replicas": job.replicas,
            "max_ongoing_requests": self.config.max_ongoing_requests,
            "graceful_shutdown_timeout_s": job.grace_seconds,
            "health_check_timeout_s": 60,
            "ray_actor_options": actor,
        }
        overrides = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
        target = job.target if "--on" in words else None
        facts = {"name": job.name, "run": job.run, "target": target, "overrides": overrides, "deployment": deployment}
        return {_FILE: json.dumps(facts, indent=1) + "\n"}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Ray Serve can't do."""
        if hosts(job) > 1:
            yield f"target {job.target} has {hosts(job)} hosts: a replica is on one; give a target of one with --on"
        for name, given in (("queue", job.queue), ("priority", job.priority)):
            if given:
                yield f"{name} {given!r}: Ray has none, it places what fits; leave --{name} out"
        if job.spot:
            yield "spot: which nodes there are is the cluster's own configuration; leave --spot out"
        if job.spares:
            yield f"{job.spares} spares: one more replica is one; raise --replicas"
        if "://" not in job.run and not job.run.startswith("/"):
            yield f"run {job.run!r}: every node must find it; give an absolute path on a shared disk, or a bucket"

    def submit(self, job: Job, folder: Path) -> str:
        """Deploys the application and waits until its replicas are ready; one that is there is replaced in turn."""
        serve = self._serve()
        from kanawa_runtime.launch.ray.serving import application_of

        facts = json.loads((folder / _FILE).read_text())
        serve.start(http_options={"host": self.config.host, "port": self.config.port, "location": "EveryNode"})
        try:
            serve.run(application_of(facts), name=job.name, route_prefix=self.config.route_prefix)
        except RuntimeError as error:
            message = f"the replicas of {job.name} didn't start: {error}; see `serve status` and Ray's logs"
            raise EngineError(message) from error
        return job.name

    def status(self, name: str) -> Status:
        """Returns what Ray Serve says of the application and its replicas."""
        application = self._application(name)
        states: dict[str, int] = {}
        for deployment in application.deployments.values():
            for state, count in deployment.replica_states.items():
                states[str(getattr(state, "value", state))] = count
        told = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items()))
        word = str(getattr(application.status, "value", application.status))
        return Status(_STATES.get(word, "unknown"), detail=" ".join(filter(None, [told, application.message])))

    def logs(self, name: str) -> str:
        """Returns where Ray keeps them: by replica, on each node."""
        self._application(name)
        return f"Ray Serve logs by replica on each node, below /tmp/ray/session_latest/logs/serve ({name})"

    def cancel(self, name: str) -> None:
        """Deletes the application; each replica answers what it has first."""
        self._application(name)
        self._serve().delete(name)

    def _application(self, name: str) -> Any:
        known = self._serve().status().applications
        if name not in known:
            message = f"Ray Serve has no application {name!r}; there are {', '.join(sorted(known)) or 'none'}"
            raise EngineError(message)
        return known[name]

    def _serve(self) -> Any:
        connected(self.config.address)
        try:
            from ray import serve
        except ImportError as error:
            message = "Ray Serve is missing: pip install 'kanawa-runtime[ray,serve]', the version of the cluster"
            raise EngineError(message) from error
        return serve
