"""What a pod must ask for to get a host of some target: resources, node labels, tolerations, environment.

The names are those of the device plugins and of the two clouds that sell the chips; other clusters set `node_selector`.
"""

import dataclasses
from collections.abc import Mapping

from kanawa.composition.target import Target

from kanawa_runtime.launch.job import Job, chips_per_host, target

#: GKE's names of TPU node pools, by device.
_GKE_TPU = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
#: AWS's instances with all their chips, and how many Elastic Fabric Adapters each has.
_EC2_NEURON = {"trn1": ("trn1.32xlarge", 8), "trn2": ("trn2.48xlarge", 16)}
_RESOURCE = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu", "rocm": "amd.com/gpu", "neuron": "aws.amazon.com/neuron"}
_CLOUD = {"tpu": "gke", "neuron": "eks"}
_SPOT = {"gke": ("cloud.google.com/gke-spot", "true"), "eks": ("eks.amazonaws.com/capacityType", "SPOT")}


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """What one pod asks for. `tolerations` are taint keys; `topology_key` groups the nodes of a slice, empty for none.

    `shared_memory`: whether processes of a pod talk through /dev/shm, of which Kubernetes gives 64 MB.
    """

    resources: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: tuple[str, ...]
    topology_key: str = ""
    shared_memory: bool = False


def accelerator(job: Job, cloud: str) -> Accelerator:
    """Returns what a pod of the job asks for; `cloud` is "gke", "eks" or empty for another cluster."""
    wanted = target(job)
    platform = wanted.device.platform
    resources, selector, tolerations = {}, {}, []
    # Device plugins are a vendor's; JAX lowers for the vendor's own platform.
    resource = _RESOURCE.get(wanted.device.lowered_as) or _RESOURCE.get(platform)
    if resource:
        resources[resource] = str(chips_per_host(job))
        tolerations.append(resource)
    if platform == "tpu":
        selector["cloud.google.com/gke-tpu-accelerator"] = _GKE_TPU.get(wanted.device.name, wanted.device.name)
        selector["cloud.google.com/gke-tpu-topology"] = wanted.topology
    if platform == "neuron" and wanted.device.name in _EC2_NEURON:
        instance, adapters = _EC2_NEURON[wanted.device.name]
        selector["node.kubernetes.io/instance-type"] = instance
        if job.hosts_per_slice * job.slices > 1:
            resources["vpc.amazonaws.com/efa"] = str(adapters)
    if job.spot and cloud in _SPOT:
        key, value = _SPOT[cloud]
        selector[key] = value
        tolerations.append(key)
    slices = wanted.slices > 1 and platform == "tpu"
    return Accelerator(
        resources=resources,
        node_selector=selector,
        tolerations=tuple(tolerations),
        # A slice is a node pool: the pods of one Job must not spread over two.
        topology_key="cloud.google.com/gke-nodepool" if slices else "",
        shared_memory=platform == "gpu",
    )


def cloud_of(wanted: Target, cloud: str) -> str:
    """Returns `cloud`, else the one that alone sells the chip, else nothing."""
    return cloud or _CLOUD.get(wanted.device.platform, "")


def slice_environment(job: Job, coordinator: str) -> dict[str, str]:
    """Returns what libtpu reads to join several slices; the slice's own number is the pod's KANAWA_SLICE."""
    if target(job).device.platform != "tpu" or job.slices == 1:
        return {}
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": coordinator,
        "MEGASCALE_NUM_SLICES": str(job.slices),
        "MEGASCALE_SLICE_ID": "$(KANAWA_SLICE)",
    }
