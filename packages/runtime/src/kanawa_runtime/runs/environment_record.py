"""What a run ran with: plugins, libraries, interpreter and devices, for events and checkpoints."""

import functools
import importlib.metadata
import platform
import socket
from typing import Any

import jax
from kanawa.plugins import host

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "grain")


@functools.cache
def environment_record() -> dict[str, Any]:
    """Returns {"plugins", "versions", "python", "host", "devices", "processes"}; versions by distribution."""
    return {
        "plugins": dict(sorted({**host().plugin_set(), "kanawa": _version("kanawa")}.items())),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
