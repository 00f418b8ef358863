"""What must hold between the servers of Pathways."""

import re
from collections.abc import Iterator
from typing import Any

from kanawa_runtime.launch.kubernetes.pathways import HEAD, MANAGER_PORT, PROXY_PORT, WORKER_PORT
from kanawa_runtime.launch.kubernetes.policy import WORKERS


def pathways_problems(manifest: dict[str, Any]) -> Iterator[str]:
    """Yields where the servers of Pathways contradict each other: they find one another by port, and share a bucket."""
    jobs = {job["name"]: job for job in manifest["spec"]["replicatedJobs"]}
    if set(jobs) != {HEAD, WORKERS}:
        yield f"spec.replicatedJobs: {sorted(jobs)}, expected {HEAD} and {WORKERS}"
        return
    head, workers = (jobs[name]["template"]["spec"]["template"]["spec"] for name in (HEAD, WORKERS))
    servers = {each["name"]: each for each in (*head.get("initContainers", ()), *workers["containers"])}
    missing = sorted({"pathways-rm", "pathways-proxy", "pathways-worker"} - set(servers))
    if missing:
        yield f"there is no container {', '.join(missing)}"
        return
    flags = {name: _arguments(server) for name, server in servers.items()}
    for name, port in (("pathways-rm", MANAGER_PORT), ("pathways-proxy", PROXY_PORT), ("pathways-worker", WORKER_PORT)):
        opened = [each["containerPort"] for each in servers[name].get("ports", ())]
        if flags[name].get("--server_port") != str(port) or opened != [port]:
            yield f"{name}: serves at {flags[name].get('--server_port')} and opens {opened}, expected {port}"
    scratch = {arguments.get("--gcs_scratch_location", "") for arguments in flags.values()}
    if len(scratch) != 1 or not re.fullmatch(r"gs://\S+", next(iter(scratch))):
        yield f"--gcs_scratch_location is {sorted(scratch)}, expected one bucket for all servers"
    slices = str(jobs[WORKERS]["replicas"])
    if flags["pathways-rm"].get("--instance_count") != slices:
        yield f"pathways-rm: --instance_count={flags['pathways-rm'].get('--instance_count')}, there are {slices} slices"
    variables = {each["name"]: each.get("value", "") for each in servers["pathways-worker"]["env"]}
    if variables.get("MEGASCALE_NUM_SLICES") != slices or "MEGASCALE_SLICE_ID" not in variables:
        yield f"pathways-worker: MEGASCALE_NUM_SLICES and MEGASCALE_SLICE_ID are those of {slices} slices"
    (main, *_) = head["containers"]
    given = {each["name"]: each.get("value", "") for each in main["env"]}
    for name, value in (("JAX_PLATFORMS", "proxy"), ("JAX_BACKEND_TARGET", f"grpc://127.0.0.1:{PROXY_PORT}")):
        if given.get(name) != value:
            yield f"{main['name']}: {name} is {given.get(name)!r}, expected {value!r}"


def _arguments(container: dict[str, Any]) -> dict[str, str]:
    return dict(text.partition("=")[::2] for text in container.get("args", ()))
