"""What the benchmarks that need an NVIDIA GPU share: the refusal elsewhere, seconds of a call, versions, the result."""

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

#: Of a script that needs a GPU and has none; a missed limit exits with 1.
NO_GPU = 2
_DISTRIBUTIONS = ("kanawa", "kanawa-backends-gpu", "jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cudnn-cu13", "torch")


def gpu_or_exit(script: str, instead: str) -> jax.Device:
    """Returns the first device; where it is no NVIDIA GPU, ends with exit code 2 and says what else can be done."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        sys.stderr.write(
            f"{script} measures an NVIDIA GPU, and JAX uses {device.platform} ({device.device_kind}) here. "
            f'On a machine with one: pip install "kanawa-backends-gpu[cuda]", with JAX_PLATFORMS unset. {instead}\n'
        )
        raise SystemExit(NO_GPU)
    return device


def seconds(call: Callable[[], Any], *, tries: int = 5, about: float = 0.2) -> float:
    """Returns the median over `tries` of a call's seconds, each taken over as many calls as last `about` seconds."""
    jax.block_until_ready(call())
    started = time.perf_counter()
    jax.block_until_ready(call())
    # One launch at a time would measure the host: calls are queued, and the last one is waited for.
    count = max(1, int(about / max(time.perf_counter() - started, 1e-6)))
    taken = []
    for _ in range(tries):
        started = time.perf_counter()
        for _ in range(count):
            last = call()
        jax.block_until_ready(last)
        taken.append((time.perf_counter() - started) / count)
    return sorted(taken)[len(taken) // 2]


def versions() -> dict[str, str]:
    """Returns the installed versions that a result depends on, and the device."""
    told = {"python": platform.python_version(), "device": jax.devices()[0].device_kind}
    for name in _DISTRIBUTIONS:
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            continue
    return told


def _written(value: Any) -> Any:
    """Returns a value as JSON knows it: what wasn't measured is null."""
    if isinstance(value, dict):
        return {name: _written(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_written(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def report(result: dict[str, Any], out: Path | None) -> None:
    """Writes the result as JSON to standard output, and to `out` where it is given."""
    text = json.dumps({"versions": versions(), **_written(result)}, indent=1)
    sys.stdout.write(text + "\n")
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
