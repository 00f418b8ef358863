"""Kubernetes' own failure policies, made from the one table of exit codes.

A permanent code fails the pod's Job with reason PodFailurePolicy, on which the JobSet gives up at once. A stop that
saved everything, and an eviction, fail the Job by other rules of the same policy: the JobSet starts all Jobs again and
counts nothing. Every other failure fails the Job with another reason, as its backoff limit is 0, and is counted. All
Jobs start again, always: a gang with one new member is no gang.
"""

from typing import Any

from kanawa_runtime.exit_codes import STOPPED, permanent_codes
from kanawa_runtime.launch.job import Job

WORKERS, SPARES, MAIN = "workers", "spares", "main"
#: The reason of a Job that its pod failure policy has failed.
GAVE_UP = "PodFailurePolicy"
#: How the Job controller ends the message of such a failure; nothing else says which rule it was.
RULE_MESSAGE = "matching FailJob rule at index {}"
FREE, FAILED = "RestartJobSetAndIgnoreMaxRestarts", "FailJobSet"
_FOR_EVER = 2**31 - 1
_DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


def job_set_policy(job: Job, name: str = WORKERS) -> dict[str, Any]:
    """Returns `failurePolicy` of the JobSet, for Jobs with `pod_policy`; message patterns need JobSet 0.10."""
    stops = RULE_MESSAGE.format("[12]") + "$"
    return {
        "maxRestarts": job.retries,
        # All pods of the lost attempt must be gone before the next begins: they would write to the same run.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {**_rule("stopped", FREE, name), "onJobFailureMessagePatterns": [stops]},
            _rule("permanent", FAILED, name),
        ],
    }


def _rule(name: str, action: str, replicated: str) -> dict[str, Any]:
    return {"name": name, "action": action, "onJobFailureReasons": [GAVE_UP], "targetReplicatedJobs": [replicated]}


def pod_policy(container: str = MAIN) -> dict[str, Any]:
    """Returns `podFailurePolicy` of a Job whose containers end by the table."""
    codes = {"containerName": container, "operator": "In"}
    permanent, stopped = {**codes, "values": list(permanent_codes())}, {**codes, "values": [STOPPED]}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": permanent},
            {"action": "FailJob", "onExitCodes": stopped},
            # Drained, preempted or out-bid, whatever the process had time to say.
            {"action": "FailJob", "onPodConditions": _DISRUPTED},
        ]
    }


def spare_policy() -> dict[str, Any]:
    """Returns what makes a Job outlive the eviction of its pods, which is what spares are for."""
    rule = {"action": "Ignore", "onPodConditions": _DISRUPTED}
    return {"backoffLimit": _FOR_EVER, "podFailurePolicy": {"rules": [rule]}}
