"""The fields of a JobSet that we write, as a JSON schema: strict, so that a misspelt or missing field is refused.

Written from the public API of jobset.x-k8s.io/v1alpha2, batch/v1 and v1; what lies between fields is in `rules.py`.
"""

from typing import Any

LABEL = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_QUALIFIED = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_INT32 = 2**31 - 1

Schema = dict[str, Any]


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def _one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def _integer(low: int, high: int = _INT32) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _list(items: Schema, least: int = 0, *, unique: bool = False) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "uniqueItems": unique}


def _map(keys: str, values: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": keys}, "additionalProperties": values, "minProperties": 1}


_WORDS = {"type": "string", "minLength": 1}
_NAME = _text(LABEL)
_AMOUNTS = _map(_QUALIFIED, _text(_QUANTITY))
_REQUIREMENTS = {"anyOf": [_object({"requests": _AMOUNTS, "limits": _AMOUNTS}), _object({})]}
_FIELD_PATH = _text(r"^metadata\.(labels|annotations)\['[a-z0-9./-]+'\]$")
_ENV = {
    "oneOf": [
        _object({"name": _text(_VARIABLE), "value": {"type": "string"}}),
        _object({"name": _text(_VARIABLE), "valueFrom": _object({"fieldRef": _object({"fieldPath": _FIELD_PATH})})}),
    ]
}
_MOUNT = _object({"name": _NAME, "mountPath": _text(r"^/[^:]*$")})
_PORT = _object({"containerPort": _integer(1, 65535)})
_CONTAINER_REQUIRED = {"name": _NAME, "image": _text(r"^[^\s]+$"), "env": _list(_ENV), "resources": _REQUIREMENTS}
_CONTAINER_OPTIONAL = {"ports": _list(_PORT, 1, unique=True), "volumeMounts": _list(_MOUNT, 1, unique=True)}
_ARGUMENTS = {"args": _list(_WORDS, 1)}
_CONTAINER = {
    "oneOf": [
        _object({**_CONTAINER_REQUIRED, "command": _list(_WORDS, 1)}, _CONTAINER_OPTIONAL),
        _object({**_CONTAINER_REQUIRED, **_ARGUMENTS}, _CONTAINER_OPTIONAL),
    ]
}
_SIDECAR = _object({**_CONTAINER_REQUIRED, **_ARGUMENTS, "restartPolicy": _one_of("Always")}, _CONTAINER_OPTIONAL)
_VOLUME = {
    "oneOf": [
        _object({"name": _NAME, "emptyDir": _object({"medium": _one_of("Memory")})}),
        _object({"name": _NAME, "persistentVolumeClaim": _object({"claimName": _text(_SUBDOMAIN)})}),
    ]
}
_TOLERATION = _object({"key": _text(_QUALIFIED), "operator": _one_of("Exists"), "effect": _one_of("NoSchedule")})
_POD = _object(
    {
        "spec": _object(
            {
                "restartPolicy": _one_of("Never"),
                "terminationGracePeriodSeconds": _integer(1),
                "containers": _list(_CONTAINER, 1),
            },
            {
                "initContainers": _list(_SIDECAR, 1),
                "volumes": _list(_VOLUME, 1, unique=True),
                "nodeSelector": _map(_QUALIFIED, _text(_LABEL_VALUE)),
                "tolerations": _list(_TOLERATION, 1, unique=True),
                "priorityClassName": _text(_SUBDOMAIN),
                "serviceAccountName": _text(_SUBDOMAIN),
            },
        )
    },
    {"metadata": _object({"annotations": _map(_QUALIFIED, {"type": "string"})})},
)
_CODES = {
    "type": "array",
    "items": _integer(1, 255),
    "minItems": 1,
    "maxItems": 255,
    "uniqueItems": True,
}
_CODE_RULE = _object(
    {
        "action": _one_of("FailJob"),
        "onExitCodes": _object({"containerName": _NAME, "operator": _one_of("In"), "values": _CODES}),
    }
)
_CONDITION = _object({"type": _one_of("DisruptionTarget"), "status": _one_of("True")})
_CONDITION_RULE = _object({"action": _one_of("Ignore"), "onPodConditions": _list(_CONDITION, 1)})
_JOB = _object(
    {
        "completionMode": _one_of("Indexed"),
        "parallelism": _integer(1, 100_000),
        "completions": _integer(1, 100_000),
        "backoffLimit": _integer(0),
        "template": _POD,
    },
    {"podFailurePolicy": _object({"rules": _list({"oneOf": [_CODE_RULE, _CONDITION_RULE]}, 1)})},
)
_RULE = _object(
    {
        "name": {**_text(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"), "maxLength": 128},
        "action": _one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        "onJobFailureReasons": _list(
            _one_of(
                "BackoffLimitExceeded",
                "DeadlineExceeded",
                "FailedIndexes",
                "MaxFailedIndexesExceeded",
                "PodFailurePolicy",
            ),
            1,
            unique=True,
        ),
        "targetReplicatedJobs": _list(_NAME, 1, unique=True),
    }
)
_DEPENDS = _list(_object({"name": _NAME, "status": _one_of("Ready", "Complete")}), 1)
_SPEC = _object(
    {
        "network": _object(
            {
                "enableDNSHostnames": _one_of(True),
                "subdomain": _NAME,
                "publishNotReadyAddresses": _one_of(True),
            }
        ),
        "coordinator": _object({"replicatedJob": _NAME, "jobIndex": _integer(0), "podIndex": _integer(0)}),
        "successPolicy": _object({"operator": _one_of("All"), "targetReplicatedJobs": _list(_NAME, 1, unique=True)}),
        "failurePolicy": _object(
            {
                "maxRestarts": _integer(0),
                "restartStrategy": _one_of("BlockingRecreate"),
                "rules": _list(_RULE, 1),
            }
        ),
        "ttlSecondsAfterFinished": _integer(0),
        "replicatedJobs": _list(
            _object(
                {"name": _NAME, "replicas": _integer(1), "template": _object({"spec": _JOB})}, {"dependsOn": _DEPENDS}
            ),
            1,
        ),
    },
    {"startupPolicy": _object({"startupPolicyOrder": _one_of("AnyOrder", "InOrder")})},
)
JOB_SET: Schema = _object(
    {
        "apiVersion": _one_of("jobset.x-k8s.io/v1alpha2"),
        "kind": _one_of("JobSet"),
        "metadata": _object(
            {"name": _NAME, "labels": _map(_QUALIFIED, _text(_LABEL_VALUE))},
            {"namespace": _NAME, "annotations": _map(_QUALIFIED, {"type": "string"})},
        ),
        "spec": _SPEC,
    }
)
