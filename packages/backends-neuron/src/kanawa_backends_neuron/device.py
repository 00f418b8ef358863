"""Figures of each Trainium chip from AWS's public documentation; dense, not with sparsity.

A selector's number counts chips: `trn2-64` is four trn2.48xlarge instances.
"""

from kanawa.plugins import DeviceSpec

_GIB = 2**30
_DOCS = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/"

# Two NeuronCores, each a JAX device. Instance: trn1.32xlarge.
TRN1 = DeviceSpec(
    name="trn1",
    platform="neuron",
    unfused=("token_exchange",),
    family="trainium",
    device_kinds=("NC_v2", "trn1"),
    peak_flops={
        "bfloat16": 190e12,
        "float16": 190e12,
        "float8_e4m3fn": 190e12,
        "int8": 380e12,
        "float32": 47.5e12,
    },
    memory_bytes=32 * _GIB,
    memory_bandwidth=820e9,
    link_bandwidth=384e9 / 2,  # NeuronLink-v2, both directions together.
    network_bandwidth=100e9 / 16,  # 800 Gb/s an instance of 16 chips.
    chips_per_host=16,
    jax_devices_per_chip=2,
    domain_chips=16,
    link_name="NeuronLink",
    source=_DOCS + "trainium.html, trn1-arch.html",
)

# Eight NeuronCores, joined in pairs (LNC=2, the default): four JAX devices. Instance:
# trn2.48xlarge.
TRN2 = DeviceSpec(
    name="trn2",
    platform="neuron",
    unfused=("token_exchange",),
    family="trainium",
    # What JAX calls a pair of cores, and a single one (LNC=1).
    device_kinds=("NC_v3d", "NC_v3", "trn2"),
    peak_flops={
        "bfloat16": 667e12,
        "float16": 667e12,
        "float8_e4m3fn": 1299e12,
        "float32": 181e12,
    },
    memory_bytes=96 * _GIB,
    memory_bandwidth=2.9e12,
    link_bandwidth=1280e9 / 2,  # NeuronLink-v3, both directions together.
    network_bandwidth=400e9 / 16,  # 3.2 Tb/s an instance of 16 chips.
    chips_per_host=16,
    jax_devices_per_chip=4,
    domain_chips=16,
    link_name="NeuronLink",
    source=_DOCS + "trainium2.html, trn2-arch.html",
)

DEVICES = (TRN1, TRN2)
