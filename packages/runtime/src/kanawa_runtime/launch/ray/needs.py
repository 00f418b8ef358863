"""What a job needs of a Ray cluster, and what no Ray cluster gives. Pure functions."""

from collections.abc import Iterator

from kanawa_runtime.launch.job import Job, chips_per_host, target

#: Ray's names of accelerators, by platform.
_RESOURCE = {"gpu": "GPU", "tpu": "TPU", "neuron": "neuron_cores"}
_NAMES = {"cpu": "CPU"}
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def problems_of_ray(job: Job, in_place_of_spares: str) -> Iterator[str]:
    """Yields what Ray can't do, for gangs and for servers; what stands in for spares differs."""
    for name, given in (("queue", job.queue), ("priority", job.priority)):
        if given:
            yield f"{name} {given!r}: Ray has none, it places what fits; leave --{name} out"
    if job.spot:
        yield "spot: which nodes there are is the cluster's own configuration; leave --spot out"
    if job.spares:
        yield f"{job.spares} spares: {in_place_of_spares}"
    if "://" not in job.run and not job.run.startswith("/"):
        yield f"run {job.run!r}: every node must find it; give an absolute path on a shared disk, or a bucket"
    wrong = sorted(name for name, amount in job.resources.items() if not _number(name, amount))
    yield from (f"resource {name}={job.resources[name]}: Ray takes numbers, and memory such as 64Gi" for name in wrong)


def bundle(job: Job) -> dict[str, float]:
    """Returns what one host of the placement group must have."""
    wanted = target(job)
    resources = {"CPU": 1.0} | {_NAMES.get(name, name): _number(name, amount) for name, amount in job.resources.items()}
    kind = _RESOURCE.get(wanted.device.platform)
    cores = wanted.device.jax_devices_per_chip if kind == "neuron_cores" else 1
    return resources | ({kind: float(chips_per_host(job) * cores)} if kind else {})


def _number(name: str, amount: str) -> float:
    """Returns an amount as Ray counts it, 0 for one it can't read."""
    unit = amount[-2:]
    factor = _UNITS.get(unit, 1) if name == "memory" else 1
    digits = amount[:-2] if factor > 1 else amount
    return float(digits) * factor if digits.replace(".", "", 1).isdigit() else 0.0
