"""Which target this run's own devices are, so that mesh rules apply without `--on`."""

import logging

from kanawa.plugins.devices import device_spec_of_kind

logger = logging.getLogger(__name__)


def local_target() -> str | None:
    """Returns the selector of all devices of the run; None for one CPU, or for a device nobody describes.

    Starts JAX's backend, so a gang must have been joined before.
    """
    import jax

    devices = jax.devices()
    platform, kind, count = devices[0].platform, devices[0].device_kind, len(devices)
    if platform == "cpu":
        return None if count == 1 else f"cpu-{count}"
    spec = device_spec_of_kind(kind)
    if spec is not None:
        chips = max(1, count // spec.jax_devices_per_chip)
        return f"{spec.name}-{chips * spec.cores_per_unit}"
    logger.warning(
        "no installed backend describes device %r (%s); running without its mesh rules and compiler options; "
        "`kanawa doctor` says which package would",
        kind,
        platform,
    )
    return None
