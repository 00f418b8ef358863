"""Which platform and device a program is built for: the plan says, else the mesh or the process."""

import jax

from kanawa.plugins.devices import device_spec_of_kind

#: JAX's own platform names that differ from ours.
_NAMES = {"cuda": "gpu", "rocm": "gpu"}


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
        return _NAMES.get(platform, platform), device.device_kind
    backend = jax.default_backend()
    return _NAMES.get(backend, backend), jax.devices()[0].device_kind


def _described_platform(kind: str) -> str:
    """Returns the platform of the device that a plugin describes, else the process's own."""
    spec = device_spec_of_kind(kind)
    return jax.default_backend() if spec is None else spec.platform
