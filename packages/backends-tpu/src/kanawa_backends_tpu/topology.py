"""Compile-only devices for a TPU slice, made by libtpu's compiler on a machine without a TPU."""

import os
from glob import glob
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kanawa.errors import TargetError

if TYPE_CHECKING:
    import jax

_LIBTPU_NAMES = {"v7x": "tpu7x"}
# v4's cores are two devices unless libtpu is configured to join them, as a Cloud TPU VM does.
_MEGACORE = ("v4",)


def topology(target: Any) -> "list[jax.Device]":
    """Returns `target.jax_devices` devices that can be compiled for and not run on, slice by slice.

    Raises TargetError if libtpu refuses the topology.
    """
    from jax.errors import JaxRuntimeError
    from jax.experimental.topologies import get_topology_desc

    name = target.device.name
    shape = f"{_LIBTPU_NAMES.get(name, name)}:{target.topology}"
    _without_a_tpu()
    try:
        devices = get_topology_desc(shape, platform="tpu", **_arguments(target)).devices
    except JaxRuntimeError as failure:
        known = ", ".join(target.device.topologies.values())
        message = (
            f"target {target.selector}: libtpu has no topology {shape!r} "
            f"({str(failure).splitlines()[0]}); {name} has {known}"
        )
        raise TargetError(message) from failure
    return list(devices)


def missing_wheels() -> list[str]:
    """Returns what the TPU compiler lacks: libtpu, unless a wheel is there or TPU_LIBRARY_PATH points to one."""
    return [] if find_spec("libtpu") is not None or "TPU_LIBRARY_PATH" in os.environ else ["libtpu"]


def has_tpu() -> bool:
    """Returns whether this machine has TPU chips, judged by its device files."""
    return bool(glob("/dev/accel[0-9]*") or glob("/dev/vfio/[0-9]*"))


def _arguments(target: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if target.slices > 1:
        arguments["num_slices"] = target.slices
    if target.device.name in _MEGACORE:
        arguments["chip_config_name"] = "megacore"
    if target.chips == target.slices:  # One chip a slice: smaller than the usual host of 2x2.
        arguments["chips_per_host_bounds"] = (1, 1, 1)
    return arguments


def _without_a_tpu() -> None:
    """Keeps libtpu, where there is no TPU, from asking a metadata server about one, and from locking it."""
    if not has_tpu():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
