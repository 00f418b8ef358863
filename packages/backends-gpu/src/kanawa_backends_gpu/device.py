"""Figures of each NVIDIA GPU from public data sheets (dense, not with sparsity)."""

from dataclasses import replace
from typing import Any

from kanawa.plugins import DeviceSpec

# NVLink's quoted bandwidth counts both directions; a DeviceSpec counts one.
_ONE_WAY = 0.5


def _peaks(half: float, single: float, eighth: float | None = None) -> dict[str, float]:
    peaks = {"bfloat16": half, "float16": half, "float32": single, "int8": 2 * half}
    if eighth is not None:
        peaks |= {"float8_e4m3fn": eighth, "float8_e5m2": eighth}
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
    peak_flops=_peaks(2250e12, single=75e12, eighth=4500e12),
    memory_bytes=191_514_411_008,
    memory_bandwidth=7672e9,
    link=1800e9,
    network_bandwidth=50e9,
)

DEVICES = (A100, A100_40GB, H100, H200, B200)
