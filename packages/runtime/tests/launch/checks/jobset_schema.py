"""The fields of a JobSet that we write, as a JSON schema: strict, so that a misspelt or missing field is refused.

Written from the public API of jobset.x-k8s.io/v1alpha2, batch/v1 and v1; what lies between fields is in `rules.py`.
"""

from typing import Any

LABEL = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
QUALIFIED = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_INT32 = 2**31 - 1

Schema = dict[str, Any]


def strict_object(required: Schema, optional: Schema | None = None) -> Schema:
    """Returns an object of these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def text_like(pattern: str) -> Schema:
    """Returns text that matches a pattern."""
    return {"type": "string", "pattern": pattern}


def one_of(*values: Any) -> Schema:
    """Returns one of these values."""
    return {"enum": list(values)}


def integer(low: int, high: int = _INT32) -> Schema:
    """Returns a whole number in a range."""
    return {"type": "integer", "minimum": low, "maximum": high}


def list_of(items: Schema, least: int = 0, *, unique: bool = False) -> Schema:
    """Returns a list."""
    return {"type": "array", "items": items, "minItems": least, "uniqueItems": unique}


def map_of(keys: str, values: Schema) -> Schema:
    """Returns an object whose keys match a pattern, one at least."""
    return {"type": "object", "propertyNames": {"pattern": keys}, "additionalProperties": values, "minProperties": 1}


WORDS = {"type": "string", "minLength": 1}
NAME = text_like(LABEL)
_AMOUNTS = map_of(QUALIFIED, text_like(QUANTITY))
REQUIREMENTS = {"anyOf": [strict_object({"requests": _AMOUNTS, "limits": _AMOUNTS}), strict_object({})]}
_FIELD_PATH = text_like(r"^metadata\.(labels|annotations)\['[a-z0-9./-]+'\]$")
SECRET_KEY = r"^[-._a-zA-Z0-9]{1,253}$"
_SOURCES = (
    strict_object({"fieldRef": strict_object({"fieldPath": _FIELD_PATH})}),
    strict_object({"secretKeyRef": strict_object({"name": text_like(SUBDOMAIN), "key": text_like(SECRET_KEY)})}),
)
ENV = {
    "oneOf": [
        strict_object({"name": text_like(VARIABLE), "value": {"type": "string"}}),
        *(strict_object({"name": text_like(VARIABLE), "valueFrom": source}) for source in _SOURCES),
    ]
}
MOUNT = strict_object({"name": NAME, "mountPath": text_like(r"^/[^:\s]*$")})
PORT = strict_object({"containerPort": integer(1, 65535)})
_CONTAINER_REQUIRED = {"name": NAME, "image": text_like(r"^[^\s]+$"), "env": list_of(ENV), "resources": REQUIREMENTS}
_CONTAINER_OPTIONAL = {"ports": list_of(PORT, 1, unique=True), "volumeMounts": list_of(MOUNT, 1, unique=True)}
_ARGUMENTS = {"args": list_of(WORDS, 1, unique=True)}
#: A shell, whose one line becomes the process.
LINE = {"type": "array", "prefixItems": [one_of("sh"), one_of("-c"), WORDS], "minItems": 3, "maxItems": 3}
_CONTAINER = {
    "oneOf": [
        strict_object({**_CONTAINER_REQUIRED, "command": LINE}, _CONTAINER_OPTIONAL),
        strict_object({**_CONTAINER_REQUIRED, **_ARGUMENTS}, _CONTAINER_OPTIONAL),
    ]
}
_SIDECAR = strict_object({**_CONTAINER_REQUIRED, **_ARGUMENTS, "restartPolicy": one_of("Always")}, _CONTAINER_OPTIONAL)
VOLUME = {
    "oneOf": [
        strict_object({"name": NAME, "emptyDir": strict_object({"medium": one_of("Memory")})}),
        strict_object({"name": NAME, "persistentVolumeClaim": strict_object({"claimName": text_like(SUBDOMAIN)})}),
    ]
}
TOLERATION = strict_object({"key": text_like(QUALIFIED), "operator": one_of("Exists"), "effect": one_of("NoSchedule")})
_POD = strict_object(
    {
        "spec": strict_object(
            {
                "restartPolicy": one_of("Never"),
                "terminationGracePeriodSeconds": integer(1),
                "containers": list_of(_CONTAINER, 1),
            },
            {
                "initContainers": list_of(_SIDECAR, 1),
                "volumes": list_of(VOLUME, 1, unique=True),
                "nodeSelector": map_of(QUALIFIED, text_like(LABEL_VALUE)),
                "tolerations": list_of(TOLERATION, 1, unique=True),
                "priorityClassName": text_like(SUBDOMAIN),
                "serviceAccountName": text_like(SUBDOMAIN),
            },
        )
    },
    {"metadata": strict_object({"annotations": map_of(QUALIFIED, {"type": "string"})})},
)
_CODES = {
    "type": "array",
    "items": integer(1, 255),
    "minItems": 1,
    "maxItems": 255,
    "uniqueItems": True,
}
_CODE_RULE = strict_object(
    {
        "action": one_of("FailJob"),
        "onExitCodes": strict_object({"containerName": NAME, "operator": one_of("In"), "values": _CODES}),
    }
)
_CONDITION = strict_object({"type": one_of("DisruptionTarget"), "status": one_of("True")})
_CONDITION_RULE = strict_object({"action": one_of("FailJob", "Ignore"), "onPodConditions": list_of(_CONDITION, 1)})
_JOB = strict_object(
    {
        "completionMode": one_of("Indexed"),
        "parallelism": integer(1, 100_000),
        "completions": integer(1, 100_000),
        "backoffLimit": integer(0),
        "template": _POD,
    },
    {"podFailurePolicy": strict_object({"rules": list_of({"oneOf": [_CODE_RULE, _CONDITION_RULE]}, 1)})},
)
_RULE = strict_object(
    {
        "name": {**text_like(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"), "maxLength": 128},
        "action": one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        "onJobFailureReasons": list_of(
            one_of(
                "BackoffLimitExceeded",
                "DeadlineExceeded",
                "FailedIndexes",
                "MaxFailedIndexesExceeded",
                "PodFailurePolicy",
            ),
            1,
            unique=True,
        ),
        "targetReplicatedJobs": list_of(NAME, 1, unique=True),
    },
    {"onJobFailureMessagePatterns": list_of(WORDS, 1, unique=True)},
)
_DEPENDS = list_of(strict_object({"name": NAME, "status": one_of("Ready", "Complete")}), 1)
_SPEC = strict_object(
    {
        "network": strict_object(
            {
                "enableDNSHostnames": one_of(True),
                "subdomain": NAME,
                "publishNotReadyAddresses": one_of(True),
            }
        ),
        "coordinator": strict_object({"replicatedJob": NAME, "jobIndex": integer(0), "podIndex": integer(0)}),
        "successPolicy": strict_object(
            {"operator": one_of("All"), "targetReplicatedJobs": list_of(NAME, 1, unique=True)}
        ),
        "failurePolicy": strict_object(
            {
                "maxRestarts": integer(0),
                "restartStrategy": one_of("BlockingRecreate"),
                "rules": list_of(_RULE, 1),
            }
        ),
        "ttlSecondsAfterFinished": integer(0),
        "replicatedJobs": list_of(
            strict_object(
                {"name": NAME, "replicas": integer(1), "template": strict_object({"spec": _JOB})},
                {"dependsOn": _DEPENDS},
            ),
            1,
        ),
    },
    {"startupPolicy": strict_object({"startupPolicyOrder": one_of("AnyOrder", "InOrder")})},
)
JOB_SET: Schema = strict_object(
    {
        "apiVersion": one_of("jobset.x-k8s.io/v1alpha2"),
        "kind": one_of("JobSet"),
        "metadata": strict_object(
            {"name": NAME, "labels": map_of(QUALIFIED, text_like(LABEL_VALUE))},
            {"namespace": NAME, "annotations": map_of(QUALIFIED, {"type": "string"})},
        ),
        "spec": _SPEC,
    }
)
