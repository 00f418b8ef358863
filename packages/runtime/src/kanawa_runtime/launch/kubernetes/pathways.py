"""A job under Pathways: one process that sees every chip, a proxy and a resource manager beside it, workers on TPUs.

The controller outlives its workers, so there is no gang: a worker that is lost restarts alone. Images, ports and
arguments are those of Google's public description of Pathways on Cloud; never run here.
"""

import shlex
from typing import Any

from kanawa_runtime.launch.job import Job, hosts, target
from kanawa_runtime.launch.kubernetes.accelerators import Accelerator, accelerator
from kanawa_runtime.launch.kubernetes.jobset import (
    asked,
    envelope,
    from_label,
    host_name,
    literal,
    named,
    pod,
    replicated,
    resources,
)
from kanawa_runtime.launch.kubernetes.policy import MAIN, WORKERS, pod_policy

HEAD = "head"
PROXY_PORT, MANAGER_PORT, WORKER_PORT = 29000, 29001, 29005
#: What makes JAX find the proxy.
PROXIED = {
    "JAX_PLATFORMS": "proxy",
    "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{PROXY_PORT}",
    "XCLOUD_ENVIRONMENT": "GCP",
}
#: Pathways' names of the TPUs it runs on.
INSTANCES = {"v5e": "tpuv5e", "v5p": "tpuv5", "v6e": "tpuv6e"}


def pathways_set(job: Job, cfg: Any, cloud: str) -> dict[str, Any]:
    """Returns the manifest; `cfg` is the launcher's config."""
    needs = accelerator(job, cloud)
    return envelope(job, cfg, needs, [_head(job, cfg), _workers(job, cfg, needs)], HEAD)


def _head(job: Job, cfg: Any) -> dict[str, Any]:
    needs = Accelerator(resources={}, node_selector={}, tolerations=())
    wanted = target(job)
    container = {
        "name": MAIN,
        "image": job.image,
        "command": ["sh", "-c", literal(shlex.join(["exec", *job.command]))],
        "env": [
            {"name": "KANAWA_JOB", "value": job.name},
            from_label("KANAWA_ATTEMPT", "restart-attempt"),
            *named(PROXIED),
            *asked(job, cfg),
        ],
        "resources": {},
    }
    scratch = f"--gcs_scratch_location={literal(cfg.scratch)}"
    manager = [
        f"--server_port={MANAGER_PORT}",
        f"--gcs_scratch_location={literal(cfg.scratch)}",
        "--node_type=resource_manager",
        f"--instance_count={job.slices}",
        f"--instance_type={INSTANCES.get(wanted.device.name, wanted.device.name)}:{wanted.topology}",
    ]
    proxy = [f"--server_port={PROXY_PORT}", f"--resource_manager_address=127.0.0.1:{MANAGER_PORT}", scratch]
    template = pod(job, cfg, needs, container, job.priority)
    # They run beside the program and restart by themselves, which is what an init container with this policy means.
    template["spec"]["initContainers"] = [
        _server("pathways-rm", cfg.server_image, manager, MANAGER_PORT, {"TPU_SKIP_MDS_QUERY": "true"}),
        _server("pathways-proxy", cfg.proxy_image, proxy, PROXY_PORT, {}),
    ]
    one = {"completionMode": "Indexed", "parallelism": 1, "completions": 1, "backoffLimit": 0}
    spec = {**one, "podFailurePolicy": pod_policy(), "template": template}
    return {"name": HEAD, "replicas": 1, "template": {"spec": spec}}


def _workers(job: Job, cfg: Any, needs: Accelerator) -> dict[str, Any]:
    container = {
        "name": "pathways-worker",
        "image": cfg.server_image,
        "args": [
            f"--server_port={WORKER_PORT}",
            f"--resource_manager_address={host_name(job, HEAD)}:{MANAGER_PORT}",
            f"--gcs_scratch_location={literal(cfg.scratch)}",
        ],
        "env": [
            from_label("MEGASCALE_SLICE_ID", "job-index"),
            *named({"MEGASCALE_NUM_SLICES": str(job.slices), "MEGASCALE_COORDINATOR_ADDRESS": host_name(job, HEAD)}),
        ],
        "resources": resources(job, needs),
        "ports": [{"containerPort": WORKER_PORT}],
    }
    template = pod(job, cfg, needs, container, job.priority)
    # A worker comes back alone, as often as all of a gang's would.
    return replicated(job, WORKERS, job.slices, {"backoffLimit": job.retries * hosts(job)}, template)


def _server(name: str, image: str, arguments: list[str], port: int, environment: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "restartPolicy": "Always",
        "args": arguments,
        "env": named(environment),
        "resources": {},
        "ports": [{"containerPort": port}],
    }
