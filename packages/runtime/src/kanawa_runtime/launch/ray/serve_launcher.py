"""`ray-serve`: replicas of a server behind the proxies of Ray Serve, on a Ray cluster that is there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kanawa.config import Positive, Size

from kanawa_runtime.launch.client import LauncherError
from kanawa_runtime.launch.job import Job, hosts, job_record
from kanawa_runtime.launch.launcher import Launcher, State, Status
from kanawa_runtime.launch.ray.launcher import connected, ray_errors
from kanawa_runtime.launch.ray.needs import bundle, problems_of_ray

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

    title = "ray-serve"
    serves = True

    secrets_by = "export it where Ray's nodes are started, from which processes inherit it"

    class Config(Launcher.Config):
        address: str = "auto"
        poll_seconds: Positive = 1.0
        port: Size = 8000
        host: str = "127.0.0.1"
        #: Under which path the application answers, where a cluster serves several.
        route_prefix: str = "/"
        #: Requests that a replica gets at once; what is beyond waits at the proxies.
        max_ongoing_requests: Size = 256

    def render(self, job: Job) -> dict[str, str]:
        """Returns what the application is made from."""
        return {_FILE: json.dumps(self._facts(job), indent=1) + "\n"}

    def _facts(self, job: Job) -> dict[str, Any]:
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
        return {"job": job_record(job), "host": self.config.host, "deployment": deployment}

    def problems(self, job: Job) -> Iterator[str]:
        """Yields what Ray Serve can't do."""
        if hosts(job) > 1:
            yield f"target {job.target} has {hosts(job)} hosts: a replica is on one; give a target of one with --on"
        yield from problems_of_ray(job, "one more replica is one; raise --replicas")

    def submit(self, job: Job, folder: Path) -> str:
        """Deploys the application and waits until its replicas are ready; one that is there is replaced in turn."""
        serve = self._serve()
        from kanawa_runtime.launch.ray.serving import application_of

        facts = json.loads((folder / _FILE).read_text())
        cfg = self.config
        failures: tuple[type[Exception], ...] = (RuntimeError, TimeoutError, *ray_errors())
        try:
            serve.start(http_options={"host": cfg.host, "port": cfg.port, "location": "EveryNode"})
        except failures as error:
            message = f"Ray Serve's proxies don't answer at {cfg.host}:{cfg.port} of each node: {_first_line(error)}"
            raise LauncherError(message) from error
        try:
            serve.run(application_of(facts), name=job.name, route_prefix=cfg.route_prefix)
        except failures as error:
            application = serve.status().applications.get(job.name)
            said = [one.message for one in application.deployments.values() if one.message] if application else []
            message = f"the replicas of {job.name} didn't start: {' '.join(said) or _first_line(error)}"
            raise LauncherError(message) from error
        return job.name

    def status(self, name: str) -> Status:
        """Returns what Ray Serve says of the application and its replicas."""
        application = self._application(name)
        states: dict[str, int] = {}
        for deployment in application.deployments.values():
            for state, count in deployment.replica_states.items():
                states[str(getattr(state, "value", state))] = count
        counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items()))
        word = str(getattr(application.status, "value", application.status))
        return Status(_STATES.get(word, "unknown"), detail=" ".join(filter(None, [counts, application.message])))

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
            raise LauncherError(message)
        return known[name]

    def _serve(self) -> Any:
        connected(self.config.address)
        try:
            from ray import serve
        except ImportError as error:
            message = "Ray Serve is missing: pip install 'kanawa-runtime[ray,serve]', the version of the cluster"
            raise LauncherError(message) from error
        return serve


def _first_line(error: Exception) -> str:
    """Returns what an error says before Ray's tables of the actor."""
    return str(error).partition("\n")[0] or type(error).__name__
