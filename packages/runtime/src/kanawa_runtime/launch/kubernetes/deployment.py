"""Replicas of a server as a Deployment with a Service before them: what routes is the cluster's. Pure functions.

A replica takes requests once `/ready` says so, and none any more from the moment it is asked to stop; it drains within
the grace. One at a time is replaced when the job changes.
"""

import shlex
from typing import Any

from kanawa_runtime.launch.job import Job, device_environment
from kanawa_runtime.launch.kubernetes.accelerators import accelerator
from kanawa_runtime.launch.kubernetes.jobset import asked, from_secret, literal, named, pod, resources
from kanawa_runtime.launch.kubernetes.policy import MAIN

SERVER_PORT, SERVICE_PORT = 8000, 80
#: Routers hear a moment later than the pod that it ends; a request that they send meanwhile must still be taken.
UNROUTED_SECONDS = 5


def deployment(job: Job, cfg: Any, cloud: str) -> list[dict[str, Any]]:
    """Returns the Deployment and its Service; `cfg` is the launcher's config."""
    needs = accelerator(job, cloud)
    labels = {"app.kubernetes.io/name": job.name, "app.kubernetes.io/managed-by": "kanawa"}
    select = {"app.kubernetes.io/name": job.name}
    metadata = {"name": job.name, "labels": labels} | ({"namespace": cfg.namespace} if cfg.namespace else {})
    template = pod(job, cfg, needs, _server(job, cfg, resources(job, needs)), job.priority)
    # A Deployment's pods are there for good.
    del template["spec"]["restartPolicy"]
    template["metadata"] = {**template.get("metadata", {}), "labels": labels}
    replicas = {
        "replicas": job.replicas,
        "selector": {"matchLabels": select},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": cfg.ready_seconds,
        "template": template,
    }
    ports = [{"port": SERVICE_PORT, "targetPort": SERVER_PORT}]
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": replicas},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": select, "ports": ports}},
    ]


def _server(job: Job, cfg: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    listen = ["--host", "0.0.0.0", "--port", str(SERVER_PORT)]
    environment = [*named({"KANAWA_JOB": job.name} | device_environment(job)), *asked(job, cfg)]
    if cfg.api_keys:
        environment.append(from_secret("KANAWA_API_KEYS", f"{cfg.api_keys}/keys"))
    return {
        "name": MAIN,
        "image": job.image,
        # In place of the shell, so that SIGTERM reaches it.
        "command": ["sh", "-c", literal(shlex.join(["exec", *job.command, *listen]))],
        "env": environment,
        "resources": wanted,
        "ports": [{"containerPort": SERVER_PORT}],
        # Compiling takes minutes: until it is ready, a replica isn't dead.
        "startupProbe": _probe("/ready", 10, max(1, cfg.ready_seconds // 10)),
        "readinessProbe": _probe("/ready", 5, 1),
        "livenessProbe": _probe("/health", 10, 6),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(UNROUTED_SECONDS)]}}},
    }


def _probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": SERVER_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
