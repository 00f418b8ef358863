"""Kubernetes' own failure policies, made from the one table of exit codes.

A permanent code fails the pod's Job with reason PodFailurePolicy, on which the JobSet gives up at once. Every other
failure fails the Job with another reason, as its backoff limit is 0, and the JobSet starts all Jobs again: a gang with
one new member is no gang.
"""

from typing import Any

from kanawa_runtime.exit_codes import permanent_codes
from kanawa_runtime.launch.job import Job

WORKERS, SPARES, MAIN = "workers", "spares", "main"
#: The reason of a Job that its pod failure policy has failed.
GAVE_UP = "PodFailurePolicy"
_FOR_EVER = 2**31 - 1


def job_set_policy(job: Job, name: str = WORKERS) -> dict[str, Any]:
    """Returns `failurePolicy` of the JobSet."""
    return {
        "maxRestarts": job.retries,
        # All pods of the lost attempt must be gone before the next begins: they would write to the same run.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "permanent",
                "action": "FailJobSet",
                "onJobFailureReasons": [GAVE_UP],
                "targetReplicatedJobs": [name],
            }
        ],
    }


def pod_policy(container: str = MAIN) -> dict[str, Any]:
    """Returns `podFailurePolicy` of a Job whose containers end by the table."""
    codes = {"containerName": container, "operator": "In", "values": list(permanent_codes())}
    return {"rules": [{"action": "FailJob", "onExitCodes": codes}]}


def spare_policy() -> dict[str, Any]:
    """Returns what makes a Job outlive the eviction of its pods, which is what spares are for."""
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {"backoffLimit": _FOR_EVER, "podFailurePolicy": {"rules": [rule]}}
