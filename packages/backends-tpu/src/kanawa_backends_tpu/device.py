"""Figures of each TPU generation, per chip, from Google's public documentation."""

from dataclasses import replace
from typing import Any

from kanawa.plugins import DeviceSpec

_GIB = 2**30
_DOCS = "https://cloud.google.com/tpu/docs/"
# Google quotes both directions of the inter-chip links together; a DeviceSpec counts one.
_ONE_WAY = 0.5
# A float32 matmul at full precision is six bfloat16 passes (JAX precision "highest").
_FLOAT32_PASSES = 6


def _topologies(*shapes: str) -> dict[int, str]:
    shapes_by_chips: dict[int, str] = {}
    for shape in shapes:
        chips = 1
        for side in shape.split("x"):
            chips *= int(side)
        shapes_by_chips[chips] = shape
    return shapes_by_chips


_SLICES_2D = _topologies("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SLICES_3D = _topologies(
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x4x12", "4x8x8", "4x8x12"),
    *("8x8x8", "8x8x12", "8x8x16", "8x12x16", "8x16x16", "12x16x16", "16x16x16"),
)


def _peaks(bfloat16: float, int8: float | None = None, float8: float | None = None) -> dict[str, float]:
    peaks = {"bfloat16": bfloat16, "float32": bfloat16 / _FLOAT32_PASSES}
    if int8 is not None:
        peaks["int8"] = int8
    if float8 is not None:
        peaks |= {"float8_e4m3fn": float8, "float8_e5m2": float8}
    return peaks


def _clock(bfloat16: float, units: int, side: int) -> float:
    """Returns cycles a second, in which the compiler counts: peak FLOP/s by what a chip's matrix units do a cycle.

    `units` are the matrix units of a chip, `side` their rows and columns (Google's pages of each generation).
    """
    return bfloat16 / (units * side * side * 2)


def _chip(
    name: str, kinds: tuple[str, ...], page: str, *, units: int, side: int, peaks: dict[str, float], **figures: Any
) -> DeviceSpec:
    """Returns a chip whose matrix units, `units` of `side` rows and columns, make its peak in bfloat16."""
    return DeviceSpec(
        name=name,
        platform="tpu",
        device_kinds=kinds,
        peak_flops=peaks,
        chips_per_host=4,  # Slices of v5e and v6e of more than 8 chips have 4 a VM.
        link_name="ICI",
        network_name="DCN",
        clock_hz=_clock(peaks["bfloat16"], units, side),
        compiler="libtpu",
        source=_DOCS + page,
        **figures,
    )


def _two_dimensional(**figures: Any) -> dict[str, Any]:
    return {"family": "tpu-2d", "topologies": _SLICES_2D, "domain_chips": 256, "torus_dimensions": 2, **figures}


def _three_dimensional(**figures: Any) -> dict[str, Any]:
    """Returns the figures of a generation whose selectors count cores, two a chip: tpu7x-128 is 4x4x4, 64 chips."""
    torus = {"family": "tpu-3d", "topologies": _SLICES_3D, "torus_dimensions": 3}
    return {**torus, "counted": "cores", "cores_per_chip": 2, **figures}


# JAX sees a v4 or v5p chip, whose two cores share memory (megacore), as one device.
V4 = _chip(
    "v4",
    ("TPU v4",),
    "v4",
    units=8,
    side=128,
    peaks=_peaks(275e12, int8=275e12),
    **_three_dimensional(domain_chips=4096),
    memory_bytes=32 * _GIB,
    memory_bandwidth=1228e9,
    link_bandwidth=300e9,  # 6 links of 50 GB/s each way; Jouppi et al. 2023, table 1.
    network_bandwidth=6.25e9,  # 50 Gb/s a chip, as v5p: v4's page gives none.
)

V5E = _chip(
    "v5e",
    ("TPU v5 lite", "TPU v5e", "TPU v5litepod"),
    "v5e",
    units=4,
    side=128,
    peaks=_peaks(197e12, int8=393e12),
    **_two_dimensional(),
    memory_bytes=16 * _GIB,
    memory_bandwidth=819e9,
    link_bandwidth=400e9 * _ONE_WAY,
    network_bandwidth=3.125e9,  # 6.4 Tb/s a pod of 256 chips.
)

V5P = _chip(
    "v5p",
    ("TPU v5", "TPU v5p"),
    "v5p",
    units=8,
    side=128,
    peaks=_peaks(459e12, int8=918e12),
    **_three_dimensional(domain_chips=8960, topologies={**_SLICES_3D, **_topologies("16x16x24")}),
    memory_bytes=95 * _GIB,
    memory_bandwidth=2765e9,
    link_bandwidth=1200e9 * _ONE_WAY,
    network_bandwidth=6.25e9,
)

V6E = _chip(
    "v6e",
    ("TPU v6 lite", "TPU v6e"),
    "v6e",
    units=4,
    side=256,
    peaks=_peaks(918e12, int8=1836e12),
    **_two_dimensional(),
    memory_bytes=32 * _GIB,
    memory_bandwidth=1638e9,
    link_bandwidth=800e9 * _ONE_WAY,
    network_bandwidth=12.5e9,  # 100 Gb/s a chip; the page of TPU7x compares the generations.
)

# Each half of a chip is a JAX device of its own: 2 devices, and 96 GiB for each.
V7X = _chip(
    "v7x",
    ("TPU7x", "TPU v7x", "TPU v7"),
    "tpu7x",
    units=8,
    side=256,
    peaks=_peaks(2307e12, float8=4614e12),
    **_three_dimensional(domain_chips=9216),
    jax_devices_per_chip=2,
    # Not published: 32 GB/s for each of a chip's two devices.
    host_bandwidth=64e9,
    memory_bytes=192 * _GIB,
    memory_bandwidth=7380e9,
    link_bandwidth=1200e9 * _ONE_WAY,
    network_bandwidth=12.5e9,
)

# Google's own spelling of the same chip; a running one is named by the first that matches, v7x.
TPU7X = replace(V7X, name="tpu7x")

DEVICES = (V4, V5E, V5P, V6E, V7X, TPU7X)
