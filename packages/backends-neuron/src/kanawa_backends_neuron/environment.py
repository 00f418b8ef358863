"""The variables that Neuron's runtime, its PJRT plugin and its compiler read in each process of a run.

From AWS's public guides (Neuron SDK 2.33) and its published Llama training on trn2; never run on a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kanawa.errors import UsageError, did_you_mean
from kanawa.plugins import DeviceSpec

_DEFAULT_PORT = 62182


@dataclass(frozen=True)
class Instance:
    """An instance as the runtime sees it: physical NeuronCores, and how many a logical one may join, default first."""

    cores: int
    logical: tuple[int, ...]


#: trn1.32xlarge has 16 chips of two cores each, trn2.48xlarge 16 of eight; only Trainium2 and later join cores.
INSTANCES: Mapping[str, Instance] = {"trn1": Instance(32, (1,)), "trn2": Instance(128, (2, 1))}


def runtime_environment(
    hosts: Sequence[str],
    index: int,
    device: str = "trn2",
    logical_cores: int | None = None,
    port: int = _DEFAULT_PORT,
) -> dict[str, str]:
    """Returns the variables of process `index` of a run with one process a host.

    `hosts` are reachable names or addresses, the first being the root. `logical_cores` are the physical cores that make
    a JAX device: 2 on trn2, the default, or 1. Raises UsageError if `index` names no host, or the device or its number
    of cores is unknown.
    """
    if not 0 <= index < len(hosts):
        message = f"process index {index} with {len(hosts)} hosts; valid: 0 to {len(hosts) - 1}"
        raise UsageError(message)
    cores = _logical_cores(device, logical_cores)
    count = INSTANCES[device].cores // cores
    variables = {
        "NEURON_RT_ROOT_COMM_ID": f"{_address(hosts[0])}:{port}",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": ",".join([str(count)] * len(hosts)),
        "NEURON_PJRT_PROCESS_INDEX": str(index),
        # Kernels, compiler and runtime must agree on it: neuronx-cc refuses a program in which they don't.
        "NEURON_LOGICAL_NC_CONFIG": str(cores),
        # One step ahead of the host; a deeper queue holds more output buffers.
        "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "1",
    }
    return {**variables, **(_NETWORK if len(hosts) > 1 else {})}


def process_environment(device: DeviceSpec, root: str, processes: int, index: int) -> dict[str, str]:
    """Returns the variables of a process of a training run, `root` being the host of process 0."""
    device_variables = runtime_environment([root] * processes, index, device.name)
    return device_variables | {"NEURON_CC_FLAGS": compiler_flags("train", device.name)}


# Collectives between instances go over the Elastic Fabric Adapter, straight from device memory.
_NETWORK: Mapping[str, str] = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
    "OFI_NCCL_PROTOCOL": "RDMA",
    "OFI_NCCL_MR_CACHE_DISABLE": "1",
}


def compiler_flags(purpose: str, device: str = "trn2", logical_cores: int | None = None) -> str:
    """Returns NEURON_CC_FLAGS for `purpose`: "train", "prefill" or "decode"; raises UsageError as above."""
    flags = ["--framework=XLA", f"--target={device}", "--model-type=transformer"]
    cores = _logical_cores(device, logical_cores)
    if len(INSTANCES[device].logical) > 1:
        flags.append(f"--lnc={cores}")
    if purpose == "train":
        # Sums over many tokens stay fp32; what to keep for the backward pass is the program's own choice.
        flags += ["--distribution-strategy=llm-training", "--enable-mixed-precision-accumulation"]
        flags.append("--no-internal-hlo-remat")
    return " ".join(flags)


def _logical_cores(device: str, wanted: int | None) -> int:
    if device not in INSTANCES:
        message = f"no Trainium called {device!r}{did_you_mean(device, INSTANCES)}; known: {', '.join(INSTANCES)}"
        raise UsageError(message)
    valid = INSTANCES[device].logical
    if wanted is not None and wanted not in valid:
        message = f"logical cores of {wanted} on {device}; valid: {', '.join(map(str, valid))}"
        raise UsageError(message)
    return valid[0] if wanted is None else wanted


def _address(host: str) -> str:
    """Returns a host as it stands before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
