"""The variables that the Neuron runtime and compiler read in each process of a run.

From AWS's public guides; never run on a device.
"""

from collections.abc import Mapping, Sequence

from kanawa.errors import UsageError

_DEFAULT_PORT = 62182


def runtime_environment(
    hosts: Sequence[str], index: int, devices_per_host: int, port: int = _DEFAULT_PORT
) -> dict[str, str]:
    """Returns the variables of process `index` of a run with one process a host.

    `hosts` are reachable names or addresses, the first being the root; `devices_per_host` counts
    JAX devices: 64 on trn2.48xlarge, 32 on trn1.32xlarge. Raises UsageError if `index` names no
    host.
    """
    if not 0 <= index < len(hosts):
        message = f"process index {index} with {len(hosts)} hosts; valid: 0 to {len(hosts) - 1}"
        raise UsageError(message)
    variables = {
        "NEURON_RT_ROOT_COMM_ID": f"{hosts[0]}:{port}",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": ",".join([str(devices_per_host)] * len(hosts)),
        "NEURON_PJRT_PROCESS_INDEX": str(index),
    }
    return variables | (_NETWORK if len(hosts) > 1 else {})


# Collectives between instances go over the Elastic Fabric Adapter, straight from device memory.
_NETWORK: Mapping[str, str] = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
}


def compiler_flags(purpose: str) -> str:
    """Returns NEURON_CC_FLAGS for `purpose`: "train", "prefill" or "decode"."""
    flags = ["--model-type=transformer"]
    if purpose == "train":
        flags.append("--distribution-strategy=llm-training")
    return " ".join(flags)
