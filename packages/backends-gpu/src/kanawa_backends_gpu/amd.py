"""Figures of each AMD Instinct GPU from public data sheets (dense, not with sparsity).

No compiler for them is public without a GPU, so a plan is an estimate. The eight GPUs of a host are joined pairwise.
"""

from dataclasses import replace

from kanawa.plugins import DeviceSpec

_GIB = 2**30


def _peaks(half: float, single: float, eighth: float, fourth: float | None = None) -> dict[str, float]:
    peaks = {"bfloat16": half, "float16": half, "float32": single, "int8": eighth}
    # CDNA 3 computes in the fnuz formats, CDNA 4 in the OCP ones; either runs at one rate.
    peaks |= {"float8_e4m3fn": eighth, "float8_e5m2": eighth}
    return peaks if fourth is None else peaks | {"float4_e2m1fn": fourth}


MI300X = DeviceSpec(
    name="mi300x",
    platform="gpu",
    lowered_as="rocm",
    family="cdna3",
    visible_devices="ROCR_VISIBLE_DEVICES",
    device_kinds=("AMD Instinct MI300X",),
    peak_flops=_peaks(1307.4e12, single=163.4e12, eighth=2614.9e12),
    memory_bytes=192 * _GIB,
    memory_bandwidth=5300e9,
    link_bandwidth=7 * 64e9,  # Seven links of 128 GB/s in both directions.
    direct_links=7,
    network_bandwidth=50e9,  # One 400 Gb/s adapter a GPU.
    chips_per_host=8,
    domain_chips=8,
    link_name="xGMI",
    source="AMD Instinct MI300X data sheet and platform data sheet; AMD CDNA 3 white paper",
)

MI325X = replace(
    MI300X,
    name="mi325x",
    device_kinds=("AMD Instinct MI325X",),
    memory_bytes=256 * _GIB,
    memory_bandwidth=6000e9,
    source="AMD Instinct MI325X data sheet and platform data sheet",
)

MI355X = replace(
    MI300X,
    name="mi355x",
    family="cdna4",
    device_kinds=("AMD Instinct MI355X",),
    peak_flops=_peaks(2516.6e12, single=157.3e12, eighth=5033.2e12, fourth=10_066.3e12),
    memory_bytes=288 * _GIB,
    memory_bandwidth=8000e9,
    link_bandwidth=7 * 76.8e9,  # Seven links of 153.6 GB/s in both directions.
    source="AMD Instinct MI355X data sheet and platform data sheet; AMD CDNA 4 white paper",
)

DEVICES = (MI300X, MI325X, MI355X)
