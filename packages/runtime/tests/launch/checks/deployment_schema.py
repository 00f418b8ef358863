"""The fields of a server's Deployment and Service that we write, as strict JSON schemas."""

from kanawa_runtime.launch.kubernetes.deployment import SERVER_PORT, UNROUTED_SECONDS

from .jobset_schema import (
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
