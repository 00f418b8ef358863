"""What a preflight can say about NVIDIA GPUs without touching one."""

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kanawa.plugins import Finding

_DRIVER = Path("/proc/driver/nvidia/version")
#: The oldest driver that runs programs of each CUDA release (NVIDIA, CUDA toolkit release notes, table 2).
_OLDEST_DRIVER = {"13": (580, 65, 6), "12": (525, 60, 13)}
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


def findings() -> list[Finding]:
    """Returns whether a GPU here would be used, and whether GPU targets can be compiled."""
    from kanawa_backends_gpu.topology import missing_wheels

    missing = missing_wheels()
    has_gpu = Path("/dev/nvidiactl").exists()
    reported: list[Finding] = []
    if has_gpu and "jax-cuda13-plugin" in missing and _installed("jax-cuda12-plugin") is None:
        message = "this machine has an NVIDIA driver but JAX has no CUDA plugin: JAX uses the CPU"
        meaning = "a run would be right, and a hundred times slower than what is paid for"
        reported.append(Finding("error", "gpu", message, 'pip install "kanawa-backends-gpu[cuda]"', meaning))
    elif missing:
        message = f"plans for GPU targets can't be compiled; not installed: {', '.join(missing)}"
        meaning = "`plan --quick` works; a compiled plan for a GPU doesn't"
        reported.append(Finding("warning", "gpu", message, 'pip install "kanawa-backends-gpu[compile]"', meaning))
    else:
        reported.append(Finding("ok", "gpu", "the GPU compiler is installed: GPU targets can be compiled"))
    reported += check_wheels(_installed)
    if has_gpu:
        text = _DRIVER.read_text(encoding="utf-8", errors="replace") if _DRIVER.exists() else ""
        reported += [*check_driver(text, _installed), *check_libraries(os.environ)]
    return reported


def check_wheels(version_of: Callable[[str], str | None]) -> list[Finding]:
    """Returns whether JAX's CUDA wheels are of the release that jaxlib is of, and of one CUDA."""
    jaxlib = version_of("jaxlib")
    releases = [release for release in ("12", "13") if version_of(f"jax-cuda{release}-plugin")]
    if len(releases) > 1:
        message = "JAX's plugins for CUDA 12 and CUDA 13 are both installed"
        fix = "pip uninstall jax-cuda12-plugin jax-cuda12-pjrt"
        return [Finding("error", "cuda wheels", message, fix, "which of them JAX starts is chance")]
    for name in (f"jax-cuda{release}-{part}" for release in releases for part in ("plugin", "pjrt")):
        here = version_of(name)
        if here is None or here.split(".")[:3] != (jaxlib or "").split(".")[:3]:
            message = f"{name} {here or 'missing'} beside jaxlib {jaxlib}"
            meaning = "JAX refuses the plugin and uses the CPU, or fails when it first compiles"
            return [Finding("error", "cuda wheels", message, f"pip install {name}=={jaxlib}", meaning)]
    return [Finding("ok", "cuda wheels", f"CUDA {releases[0]}, of jaxlib's release")] if releases else []


def check_driver(text: str, version_of: Callable[[str], str | None]) -> list[Finding]:
    """Returns whether the driver, by the text of /proc/driver/nvidia/version, runs programs of the installed CUDA."""
    match = _VERSION.search(text)
    if match is None:
        return [
            Finding("warning", "gpu driver", "its version can't be read", "look at nvidia-smi", "it may be too old")
        ]
    driver = tuple(map(int, match[1].split(".")))
    release = next((release for release in ("13", "12") if version_of(f"jax-cuda{release}-plugin")), None)
    if release is None or driver >= _OLDEST_DRIVER[release][: len(driver)]:
        return [Finding("ok", "gpu driver", match[1])]
    oldest = ".".join(map(str, _OLDEST_DRIVER[release]))
    message = f"driver {match[1]} is older than {oldest}, which CUDA {release} asks for"
    fix = f"update the driver, or pip install jax-cuda{'12' if release == '13' else '11'}-plugin"
    return [Finding("error", "gpu driver", message, fix, "JAX finds no GPU and uses the CPU")]


def check_libraries(environment: Mapping[str, str]) -> list[Finding]:
    """Returns whether LD_LIBRARY_PATH puts other CUDA libraries before those of the wheels."""
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if "cuda" in folder.lower()]
    if not folders:
        return []
    message = f"LD_LIBRARY_PATH has {', '.join(folders)}"
    meaning = "other CUDA libraries than the wheels' may be loaded, and cuDNN then refuses what was compiled for it"
    return [Finding("warning", "cuda libraries", message, "unset LD_LIBRARY_PATH", meaning)]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
