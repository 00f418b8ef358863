"""Figures of each NVIDIA GPU from public data sheets (dense, not with sparsity); AMD's are in `amd.py`."""

from dataclasses import replace
from typing import Any

from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu import amd

# NVLink's quoted bandwidth counts both directions; a DeviceSpec counts one.
_ONE_WAY = 0.5


def _peaks(
    half: float, single: float, eighth: float | None = None, fourth: float | None = None, int8: float | None = None
) -> dict[str, float]:
    peaks = {"bfloat16": half, "float16": half, "float32": single, "int8": int8 or 2 * half}
    if eighth is not None:
        peaks |= {"float8_e4m3fn": eighth, "float8_e5m2": eighth}
    if fourth is not None:
        peaks["float4_e2m1fn"] = fourth
    return peaks


def _in_host_of_eight(name: str, kind: str, source: str, *, link: float, **figures: Any) -> DeviceSpec:
    """Returns a GPU of which a host has eight, joined by NVLink; `link` counts both directions."""
    return DeviceSpec(
        name=name,
        platform="gpu",
        lowered_as="cuda",
        visible_devices="CUDA_VISIBLE_DEVICES",
        device_kinds=(kind,),
        link_bandwidth=link * _ONE_WAY,
        chips_per_host=8,
        domain_chips=8,
        link_name="NVLink",
        compiler="jax-cuda13-pjrt",
        source=source,
        **figures,
    )


# `memory_bytes` is what the driver reports for the card, not the marketing size.
A100 = _in_host_of_eight(
    "a100",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 Tensor Core GPU data sheet (SXM); DGX A100 system data sheet",
    family="ampere",
    peak_flops=_peaks(312e12, single=19.5e12),
    memory_bytes=85_100_068_864,
    memory_bandwidth=2039e9,
    link=600e9,
    network_bandwidth=25e9,  # One 200 Gb/s adapter a GPU.
)

A100_40GB = replace(
    A100,
    name="a100_40gb",
    device_kinds=("NVIDIA A100-SXM4-40GB",),
    memory_bytes=42_505_273_344,
    memory_bandwidth=1555e9,
)

H100 = _in_host_of_eight(
    "h100",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 GPU architecture white paper, table 2 (SXM5); DGX H100 data sheet",
    family="hopper",
    peak_flops=_peaks(989.4e12, single=66.9e12, eighth=1978.9e12),
    memory_bytes=84_942_979_072,
    memory_bandwidth=3352e9,
    host_bandwidth=64e9,  # PCIe 5.0 x16, 128 GB/s both ways together, by the same paper.
    link=900e9,
    network_bandwidth=50e9,  # One 400 Gb/s adapter a GPU.
)

# The same chip as H100 with more memory.
H200 = replace(
    H100,
    name="h200",
    device_kinds=("NVIDIA H200",),
    memory_bytes=151_397_597_184,
    memory_bandwidth=4800e9,
    source="NVIDIA H200 Tensor Core GPU data sheet (SXM); DGX H200 data sheet",
)

B200 = _in_host_of_eight(
    "b200",
    "NVIDIA B200",
    "NVIDIA Blackwell architecture data sheet (HGX B200); DGX B200 data sheet",
    family="blackwell",
    peak_flops=_peaks(2250e12, single=75e12, eighth=4500e12, fourth=9000e12),
    memory_bytes=191_514_411_008,
    memory_bandwidth=7672e9,
    host_bandwidth=64e9,
    link=1800e9,
    network_bandwidth=50e9,
)

# Blackwell Ultra: more memory, 1.5 times the FP4, next to no int8; an 800 Gb/s adapter a GPU (ConnectX-8).
B300 = replace(
    B200,
    name="b300",
    device_kinds=("NVIDIA B300 SXM6 AC", "NVIDIA B300"),
    peak_flops=_peaks(2250e12, single=75e12, eighth=4500e12, fourth=13_500e12, int8=150e12),
    memory_bytes=275_040 * 2**20,
    network_bandwidth=100e9,
    source="NVIDIA HGX B300 data sheet (FP4 108 PFLOPS dense, FP8 72 and FP16 36 PFLOPS sparse, for eight GPUs)",
)

# A rack of 18 hosts with four GPUs each, whose 72 GPUs are one NVLink domain.
GB200 = replace(
    B200,
    name="gb200",
    device_kinds=("NVIDIA GB200",),
    peak_flops=_peaks(2500e12, single=80e12, eighth=5000e12, fourth=10_000e12),
    memory_bytes=189_471 * 2**20,
    memory_bandwidth=8000e9,
    host_bandwidth=225e9,  # NVLink-C2C of a superchip, 900 GB/s both ways together, for two GPUs.
    source="NVIDIA GB200 NVL72 data sheet (FP8 720, FP16 360 PFLOPS sparse, FP4 720 dense, 576 TB/s for 72 GPUs)",
    chips_per_host=4,
    domain_chips=72,
)

GB300 = replace(
    B300,
    name="gb300",
    device_kinds=("NVIDIA GB300",),
    peak_flops=_peaks(2500e12, single=80e12, eighth=5000e12, fourth=15_000e12, int8=165e12),
    memory_bytes=284_208 * 2**20,
    memory_bandwidth=8000e9,
    host_bandwidth=225e9,  # NVLink-C2C of a superchip, 900 GB/s both ways together, for two GPUs.
    source="NVIDIA GB300 NVL72 data sheet (FP4 1,080 PFLOPS dense, FP8 720 and FP16 360 sparse, for 72 GPUs)",
    chips_per_host=4,
    domain_chips=72,
)

NVIDIA = (A100, A100_40GB, H100, H200, B200, B300, GB200, GB300)
DEVICES = (*NVIDIA, *amd.DEVICES)
