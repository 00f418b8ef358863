"""Which target this run's own devices are, so that mesh rules apply without `--on`."""

import logging

from kanawa.plugins.devices import device_spec_of_kind

logger = logging.getLogger(__name__)


def local_target() -> str | None:
    """Returns the selector of all devices of the run; None for one machine whole, or for a device without description.

    Starts JAX's backend, so a gang must have been joined before.
    """
    import jax

    devices = jax.devices()
    device, count = devices[0], len(devices)
    spec = device_spec_of_kind(device.device_kind)
    if spec is not None and spec.divisible and count == 1:
        return None
    if spec is not None:
        chips = max(1, count // spec.jax_devices_per_chip)
        return f"{spec.name}-{chips * spec.cores_per_unit}"
    logger.warning(
        "no installed backend describes device %r (%s); running without its mesh rules and compiler options; "
        "`kanawa doctor` says which package would",
        device.device_kind,
        device.platform,
    )
    return None
