"""Replicas of a server as a Deployment with a Service before them: what routes is the cluster's. Pure functions.

A replica takes requests once `/ready` says so, and none any more from the moment it is asked to stop; it drains within
the grace. One at a time is replaced when the job changes.
"""

import shlex
from typing import Any

from kanawa_runtime.launch.job import Job, device_environment
from kanawa_runtime.launch.kubernetes.accelerators import accelerator
from kanawa_runtime.launch.kubernetes.container import asked, from_secret, literal, named, resources
from kanawa_runtime.launch.kubernetes.jobset import pod
from kanawa_runtime.launch.kubernetes.policy import MAIN
from kanawa_runtime.launch.kubernetes.schema import (
    ENV,
    LABEL_VALUE,
    LINE,
    MOUNT,
    NAME,
    PORT,
    QUALIFIED,
    REQUIREMENTS,
    SUBDOMAIN,
    TOLERATION,
    VOLUME,
    integer,
    list_of,
    map_of,
    one_of,
    strict_object,
    text_like,
)

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


_PROBE = strict_object(
    {
        "httpGet": strict_object({"path": one_of("/ready", "/health"), "port": one_of(SERVER_PORT)}),
        "periodSeconds": integer(1),
        "timeoutSeconds": integer(1),
        "failureThreshold": integer(1),
    }
)
_SLEEP = one_of(["sleep", str(UNROUTED_SECONDS)])
_STOP = strict_object({"preStop": strict_object({"exec": strict_object({"command": _SLEEP})})})
_CONTAINER = strict_object(
    {
        "name": NAME,
        "image": text_like(r"^[^\s]+$"),
        "command": LINE,
        "env": list_of(ENV),
        "resources": REQUIREMENTS,
        "ports": list_of(PORT, 1, unique=True),
        "startupProbe": _PROBE,
        "readinessProbe": _PROBE,
        "livenessProbe": _PROBE,
        "lifecycle": _STOP,
    },
    {"volumeMounts": list_of(MOUNT, 1, unique=True)},
)
_LABELS = map_of(QUALIFIED, text_like(LABEL_VALUE))
_POD = strict_object(
    {
        "metadata": strict_object({"labels": _LABELS}, {"annotations": map_of(QUALIFIED, {"type": "string"})}),
        "spec": strict_object(
            {"terminationGracePeriodSeconds": integer(UNROUTED_SECONDS + 1), "containers": list_of(_CONTAINER, 1)},
            {
                "volumes": list_of(VOLUME, 1, unique=True),
                "nodeSelector": _LABELS,
                "tolerations": list_of(TOLERATION, 1, unique=True),
                "priorityClassName": text_like(SUBDOMAIN),
                "serviceAccountName": text_like(SUBDOMAIN),
            },
        ),
    }
)
_METADATA = strict_object({"name": NAME, "labels": _LABELS}, {"namespace": NAME})
_ROLLING = strict_object({"maxSurge": integer(1), "maxUnavailable": one_of(0)})
DEPLOYMENT = strict_object(
    {
        "apiVersion": one_of("apps/v1"),
        "kind": one_of("Deployment"),
        "metadata": _METADATA,
        "spec": strict_object(
            {
                "replicas": integer(1),
                "selector": strict_object({"matchLabels": _LABELS}),
                "strategy": strict_object({"type": one_of("RollingUpdate"), "rollingUpdate": _ROLLING}),
                "progressDeadlineSeconds": integer(1),
                "template": _POD,
            }
        ),
    }
)
_SERVICE_PORT = strict_object({"port": integer(1, 65535), "targetPort": one_of(SERVER_PORT)})
SERVICE = strict_object(
    {
        "apiVersion": one_of("v1"),
        "kind": one_of("Service"),
        "metadata": _METADATA,
        "spec": strict_object({"selector": _LABELS, "ports": list_of(_SERVICE_PORT, 1)}),
    }
)
