"""Which platform and device a program is built for: those of the plan, else of the mesh or the process; or none.

What is traced for shapes alone (`outline`) is never compiled, so a kernel needs no library of its platform to be there.
"""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

import jax

from kanawa.plugins.devices import device_spec_of_kind, platform_of

_outlined: ContextVar[bool] = ContextVar("kanawa_outline", default=False)


def current_platform() -> tuple[str, str | None]:
    """Returns (platform, device_kind) of the program being traced; the kind is None if unknown.

    A mesh of compile-only topology devices counts like real ones.
    """
    from kanawa.arrays.plan import current_plan

    plan = current_plan()
    if plan.platform is not None:
        return plan.platform, plan.device_kind
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    if device is not None:
        # jax 0.10.0's abstract devices don't say their platform; newer ones do.
        platform = getattr(device, "platform", None) or _described_platform(device.device_kind)
        return platform_of(platform), device.device_kind
    backend = jax.default_backend()
    return platform_of(backend), jax.devices()[0].device_kind


def runs_here() -> bool:
    """Returns whether the program being traced is for this process's devices, not for ones that a target describes."""
    from kanawa.arrays.plan import current_plan

    return current_plan().platform is None


def mesh_error() -> str:
    """Returns why calls that need one device's operands can't be made here; empty where they can."""
    mesh = jax.sharding.get_abstract_mesh()
    # Axes of a shard_map count too: devices of one process would share the threads of such calls.
    if mesh.empty or math.prod(mesh.axis_sizes) == 1:
        return ""
    sizes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1)
    return f"it runs on one device's operands, and these are spread over a mesh of {sizes}"


def _described_platform(kind: str) -> str:
    """Returns the platform of the device that a plugin describes, else the process's own."""
    spec = device_spec_of_kind(kind)
    return jax.default_backend() if spec is None else spec.platform


@contextlib.contextmanager
def outline() -> Iterator[None]:
    """Says that what is traced in the block is only looked at."""
    token = _outlined.set(True)
    try:
        yield
    finally:
        _outlined.reset(token)


def outlined() -> bool:
    """Returns whether what is traced now is only looked at."""
    return _outlined.get()
