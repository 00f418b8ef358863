"""Figures of each NVIDIA GPU from public data sheets (dense, not with sparsity)."""

from kanawa.plugins import DeviceSpec

# NVLink's quoted bandwidth counts both directions; a DeviceSpec counts one.
_ONE_WAY = 0.5


def _peaks(half: float, single: float, eighth: float | None = None) -> dict[str, float]:
    peaks = {"bfloat16": half, "float16": half, "float32": single, "int8": 2 * half}
    if eighth is not None:
        peaks |= {"float8_e4m3fn": eighth, "float8_e5m2": eighth}
    return peaks


# `memory_bytes` is what the driver reports for the card, not the marketing size.
A100 = DeviceSpec(
    name="a100",
    platform="gpu",
    family="ampere",
    device_kinds=("NVIDIA A100-SXM4-80GB",),
    peak_flops=_peaks(312e12, single=19.5e12),
    memory_bytes=85_100_068_864,
    memory_bandwidth=2039e9,
    link_bandwidth=600e9 * _ONE_WAY,
    network_bandwidth=25e9,  # One 200 Gb/s adapter a GPU.
    chips_per_host=8,
    domain_chips=8,
    link_name="NVLink",
    source="NVIDIA A100 Tensor Core GPU data sheet (SXM); DGX A100 system data sheet",
)

A100_40GB = DeviceSpec(
    name="a100_40gb",
    platform="gpu",
    family="ampere",
    device_kinds=("NVIDIA A100-SXM4-40GB",),
    peak_flops=_peaks(312e12, single=19.5e12),
    memory_bytes=42_505_273_344,
    memory_bandwidth=1555e9,
    link_bandwidth=600e9 * _ONE_WAY,
    network_bandwidth=25e9,
    chips_per_host=8,
    domain_chips=8,
    link_name="NVLink",
    source="NVIDIA A100 Tensor Core GPU data sheet (SXM); DGX A100 system data sheet",
)

H100 = DeviceSpec(
    name="h100",
    platform="gpu",
    family="hopper",
    device_kinds=("NVIDIA H100 80GB HBM3",),
    peak_flops=_peaks(989.4e12, single=66.9e12, eighth=1978.9e12),
    memory_bytes=84_942_979_072,
    memory_bandwidth=3352e9,
    link_bandwidth=900e9 * _ONE_WAY,
    network_bandwidth=50e9,  # One 400 Gb/s adapter a GPU.
    chips_per_host=8,
    domain_chips=8,
    link_name="NVLink",
    source="NVIDIA H100 GPU architecture white paper, table 2 (SXM5); DGX H100 data sheet",
)

H200 = DeviceSpec(
    name="h200",
    platform="gpu",
    family="hopper",
    device_kinds=("NVIDIA H200",),
    peak_flops=_peaks(989.4e12, single=66.9e12, eighth=1978.9e12),
    memory_bytes=151_397_597_184,
    memory_bandwidth=4800e9,
    link_bandwidth=900e9 * _ONE_WAY,
    network_bandwidth=50e9,
    chips_per_host=8,
    domain_chips=8,
    link_name="NVLink",
    source="NVIDIA H200 Tensor Core GPU data sheet (SXM); DGX H200 data sheet",
)

B200 = DeviceSpec(
    name="b200",
    platform="gpu",
    family="blackwell",
    device_kinds=("NVIDIA B200",),
    peak_flops=_peaks(2250e12, single=75e12, eighth=4500e12),
    memory_bytes=191_514_411_008,
    memory_bandwidth=7672e9,
    link_bandwidth=1800e9 * _ONE_WAY,
    network_bandwidth=50e9,
    chips_per_host=8,
    domain_chips=8,
    link_name="NVLink",
    source="NVIDIA Blackwell architecture data sheet (HGX B200); DGX B200 data sheet",
)

DEVICES = (A100, A100_40GB, H100, H200, B200)
