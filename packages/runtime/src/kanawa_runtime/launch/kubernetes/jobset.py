"""A job as a JobSet: a Job for each slice, a pod for each host, all of them one gang. Pure functions."""

import shlex
from collections.abc import Mapping
from typing import Any

from kanawa_runtime.launch.job import Job, device_environment, joining
from kanawa_runtime.launch.kubernetes.accelerators import Accelerator, accelerator, slice_environment
from kanawa_runtime.launch.kubernetes.policy import MAIN, SPARES, WORKERS, job_set_policy, pod_policy, spare_policy

API = "jobset.x-k8s.io/v1alpha2"
PORT = 8476
_LABEL = "metadata.labels['jobset.sigs.k8s.io/{}']"


def job_set(job: Job, cfg: Any, cloud: str) -> dict[str, Any]:
    """Returns the manifest; `cfg` is the launcher's config."""
    needs = accelerator(job, cloud)
    return envelope(job, cfg, needs, [_workers(job, cfg, needs), *_spares(job, cfg, needs)], WORKERS)


def envelope(job: Job, cfg: Any, needs: Accelerator, jobs: list[dict[str, Any]], first: str) -> dict[str, Any]:
    """Returns a JobSet around Jobs, of which those called `first` decide how it ends."""
    labels = {"app.kubernetes.io/managed-by": "kanawa"}
    if job.queue:
        labels["kueue.x-k8s.io/queue-name"] = job.queue
        if job.priority:
            labels["kueue.x-k8s.io/priority-class"] = job.priority
    metadata: dict[str, Any] = {"name": job.name, "labels": labels}
    if cfg.namespace:
        metadata["namespace"] = cfg.namespace
    if needs.topology_key:
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": needs.topology_key}
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
        "coordinator": {"replicatedJob": first, "jobIndex": 0, "podIndex": 0},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [first]},
        "failurePolicy": job_set_policy(job, first),
        "ttlSecondsAfterFinished": cfg.keep_seconds,
        "replicatedJobs": jobs,
    }
    return {"apiVersion": API, "kind": "JobSet", "metadata": metadata, "spec": spec}


def host_name(job: Job, replicated: str = WORKERS) -> str:
    """Returns the stable name of the first pod of a replicated job."""
    return f"{job.name}-{replicated}-0-0.{job.name}"


def _workers(job: Job, cfg: Any, needs: Accelerator) -> dict[str, Any]:
    # The kubelet knows a pod's slice and host; JAX's own detection would count one Job's pods only.
    index = f"$((KANAWA_SLICE * {job.hosts_per_slice} + JOB_COMPLETION_INDEX))"
    gang = joining(job, f"{host_name(job)}:{PORT}", index)
    # In place of the shell, so that SIGTERM reaches it.
    line = shlex.join(["exec", *job.command])
    if gang:
        line = f"{line} {shlex.join(gang[:-1])} {gang[-1]}"
    environment = [
        {"name": "KANAWA_JOB", "value": job.name},
        from_label("KANAWA_SLICE", "job-index"),
        from_label("KANAWA_ATTEMPT", "restart-attempt"),
        *named(slice_environment(job, host_name(job)) | device_environment(job)),
        *asked(job, cfg),
    ]
    container = {
        "name": MAIN,
        "image": job.image,
        "command": ["sh", "-c", literal(line)],
        "env": environment,
        "resources": resources(job, needs),
    }
    if gang:
        container["ports"] = [{"containerPort": PORT}]
    policy = {"backoffLimit": 0, "podFailurePolicy": pod_policy()}
    return replicated(job, WORKERS, job.slices, policy, pod(job, cfg, needs, container, job.priority))


def _spares(job: Job, cfg: Any, needs: Accelerator) -> list[dict[str, Any]]:
    """Returns pods that hold hosts with the image already there, for less priority than the workers.

    When a host is lost, all pods are made anew: the scheduler places workers first, on hosts that spares had.
    """
    if not job.spares:
        return []
    container = {
        "name": MAIN,
        "image": job.image,
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
        "env": [],
        "resources": resources(job, needs),
    }
    template = pod(job, cfg, needs, container, cfg.spare_priority)
    return [replicated(job, SPARES, job.spares, spare_policy(), template)]


def replicated(job: Job, name: str, replicas: int, policy: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Returns `replicas` Jobs with a pod for each host of a slice."""
    count = job.hosts_per_slice
    spec = {"completionMode": "Indexed", "parallelism": count, "completions": count, **policy, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def pod(job: Job, cfg: Any, needs: Accelerator, container: dict[str, Any], priority: str) -> dict[str, Any]:
    """Returns the template of a pod with one container."""
    volumes, mounts = _volumes(cfg, needs)
    if mounts:
        container = {**container, "volumeMounts": mounts}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_seconds,
        "containers": [container],
    }
    if volumes:
        spec["volumes"] = volumes
    selector = {**needs.node_selector, **cfg.node_selector}
    if selector:
        spec["nodeSelector"] = selector
    taints = dict.fromkeys([*needs.tolerations, *cfg.tolerations])
    if taints:
        spec["tolerations"] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints]
    # Kueue has priorities of its own, set by a label.
    if priority and not job.queue:
        spec["priorityClassName"] = priority
    if cfg.service_account:
        spec["serviceAccountName"] = cfg.service_account
    template: dict[str, Any] = {"spec": spec}
    if cfg.topology:
        template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": cfg.topology}}
    return template


def _volumes(cfg: Any, needs: Accelerator) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if needs.shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for index, (path, claim) in enumerate(cfg.claims.items()):
        volumes.append({"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{index}", "mountPath": path})
    return volumes, mounts


# --- parts of a container ------------------------------------------------------------------------------------------


def literal(text: str) -> str:
    """Returns what stands for a text in a command, an argument or a variable.

    Kubernetes puts a variable's value for `$(NAME)` before any shell sees it, and one sign for two.
    """
    return text.replace("$", "$$")


def asked(job: Job, cfg: Any) -> list[dict[str, Any]]:
    """Returns the variables that were asked for: those in clear, then those whose values are in a Secret."""
    clear = named({name: literal(value) for name, value in job.environment.items()})
    return [*clear, *(from_secret(name, place) for name, place in cfg.secrets.items())]


def named(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns variables as containers take them."""
    return [{"name": name, "value": value} for name, value in environment.items()]


def from_label(name: str, label: str) -> dict[str, Any]:
    """Returns a variable that holds what JobSet writes on each pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": _LABEL.format(label)}}}


def from_secret(name: str, place: str) -> dict[str, Any]:
    """Returns a variable whose value is an entry of a Secret, at SECRET/KEY."""
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def resources(job: Job, needs: Accelerator) -> dict[str, Any]:
    """Returns requests and limits, alike: devices can't be overcommitted, and Kueue counts requests."""
    wanted = {**needs.resources, **job.resources}
    return {"requests": wanted, "limits": wanted} if wanted else {}
