"""What XLA's GPU compiler must know of a GPU that isn't there: the text of a
GpuTargetConfigProto.

Sources: CUDA C++ Programming Guide, "Technical specifications per compute capability"; the cards'
data sheets; the properties that the CUDA runtime reports for each card (multiprocessors, L2 size,
boost clock).
"""

from dataclasses import dataclass, replace

from kanawa.plugins import DeviceSpec

# The compiler library these texts are for: kernels are chosen by what this cuDNN supports.
_CUDNN = (9, 10, 0)
_CUDA = (13, 0, 0)
#: The same for every compute capability from 8.0 to 10.0.
LIMITS = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 48 * 1024,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
}


@dataclass(frozen=True, kw_only=True)
class Silicon:
    """Figures of a GPU's chip that a compiler needs and a training plan doesn't."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    float32_units: int
    shared_memory_kib: int
    l2_bytes: int
    clock_ghz: float


_AMPERE = Silicon(
    compute_capability=(8, 0),
    multiprocessors=108,
    float32_units=64,
    shared_memory_kib=164,
    l2_bytes=40 * 2**20,
    clock_ghz=1.41,
)
_HOPPER = Silicon(
    compute_capability=(9, 0),
    multiprocessors=132,
    float32_units=128,
    shared_memory_kib=228,
    l2_bytes=50 * 2**20,
    clock_ghz=1.98,
)
_BLACKWELL = Silicon(
    compute_capability=(10, 0),
    multiprocessors=148,
    float32_units=128,
    shared_memory_kib=228,
    l2_bytes=132_644_864,
    clock_ghz=1.965,
)
_GRACE_BLACKWELL = replace(_BLACKWELL, multiprocessors=152, clock_ghz=2.062)
#: By a device's name, else by its family.
SILICON = {
    "ampere": _AMPERE,
    "hopper": _HOPPER,
    "blackwell": _BLACKWELL,
    "gb200": _GRACE_BLACKWELL,
    "b300": replace(_BLACKWELL, compute_capability=(10, 3)),
    "gb300": replace(_GRACE_BLACKWELL, compute_capability=(10, 3)),
}


def silicon(device: DeviceSpec) -> Silicon:
    """Returns a device's chip; KeyError for one that no public compiler is for."""
    return SILICON.get(device.name) or SILICON[device.family]


def target_config(device: DeviceSpec) -> str:
    """Returns the text form of the GpuTargetConfigProto of `device`."""
    chip = silicon(device)
    major, minor = chip.compute_capability
    figures = LIMITS | {
        "shared_memory_per_core": chip.shared_memory_kib * 1024,
        # A block can't have the last KiB: the system keeps it.
        "shared_memory_per_block_optin": (chip.shared_memory_kib - 1) * 1024,
        "core_count": chip.multiprocessors,
        "fpus_per_core": chip.float32_units,
        "l2_cache_size": chip.l2_bytes,
        "clock_rate_ghz": chip.clock_ghz,
        "memory_bandwidth": int(device.memory_bandwidth),
        "device_memory_size": device.memory_bytes,
    }
    lines = [f"  {name}: {value}" for name, value in figures.items()]
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}",
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {_version(_CUDNN)} }}",
            f"runtime_version {{ {_version(_CUDA)} }}",
            f'device_description_str: "{device.device_kinds[0]}"',
            "",
        ]
    )


def _version(parts: tuple[int, int, int]) -> str:
    return " ".join(f"{name}: {part}" for name, part in zip(("major", "minor", "patch"), parts, strict=True))
