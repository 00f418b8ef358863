"""Compile-only devices for NVIDIA GPUs, made by XLA's GPU compiler on a machine without one."""

from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


def topology(target: Any) -> "list[jax.Device]":
    """Returns `target.jax_devices` devices that can be compiled for and not run on.

    Programs for them are lowered with `jit(f).trace(…).lower(lowering_platforms=("cuda",))`,
    because the process's own platform is another.
    """
    from jax.experimental.topologies import get_topology_desc

    from kanawa_backends_gpu.target_config import target_config

    device = target.device
    return list(
        get_topology_desc(
            device.name,
            platform="cuda",
            target_config=target_config(device),
            topology=arrangement(target),
        ).devices
    )


def arrangement(target: Any) -> str:
    """Returns "domains x hosts a domain x GPUs a host", as XLA's compiler takes it."""
    device, gpus = target.device, target.chips
    if gpus <= device.chips_per_host:
        return f"1x1x{gpus}"
    hosts = gpus // device.chips_per_host
    domains = gpus // device.chips_in_domain(gpus)
    return f"{domains}x{hosts // domains}x{device.chips_per_host}"


def missing_wheels() -> list[str]:
    """Returns the distributions of the GPU compiler that aren't installed."""
    present_by_wheel = {
        "jax-cuda13-plugin": bool(folders("jax_plugins.xla_cuda13")),
        "nvidia-cuda-nvcc": _has_assembler(),
        "nvidia-cudnn-cu13": bool(folders("nvidia.cudnn")),
    }
    return [wheel for wheel, present in present_by_wheel.items() if not present]


def _has_assembler() -> bool:
    wheels = (Path(folder, "bin", "ptxas").exists() for folder in folders("nvidia.cu13"))
    return any(wheels) or which("ptxas") is not None


def folders(package: str) -> list[str]:
    """Returns where an importable package lies, without importing it; empty if there is none."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return []
    return list(spec.submodule_search_locations or []) if spec else []
