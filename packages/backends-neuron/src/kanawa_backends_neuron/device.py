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

# Eight NeuronCores, joined in pairs. A Trn3 Gen2 UltraServer has 36 hosts, whose 144 chips NeuronSwitches join.
TRN3 = DeviceSpec(
    name="trn3",
    platform="neuron",
    unfused=("token_exchange",),
    family="trainium",
    device_kinds=("NC_v4d", "NC_v4", "trn3"),
    peak_flops={
        "bfloat16": 671e12,
        "float16": 671e12,
        "float8_e4m3fn": 2517e12,
        "float4_e2m1fn": 2517e12,  # MXFP8 and MXFP4 alike.
        "float32": 183e12,
    },
    memory_bytes=144 * _GIB,
    memory_bandwidth=4.9e12,
    link_bandwidth=2560e9 / 2,  # NeuronLink-v4, both directions together.
    network_bandwidth=28.8e12 / 8 / 144,  # 28.8 Tb/s an UltraServer (EFAv4).
    chips_per_host=4,
    jax_devices_per_chip=4,
    domain_chips=144,
    link_name="NeuronLink",
    source=_DOCS + "trainium3.html; AWS, Amazon EC2 Trn3 UltraServers (Gen2)",
)

DEVICES = (TRN1, TRN2, TRN3)
