"""This process's CPU devices, for which plans of a CPU target are compiled: their compiler comes with JAX."""

import contextlib
import os
from typing import TYPE_CHECKING, Any

from kanawa.errors import TargetError

from kanawa_backends_cpu.process import provide_threads

if TYPE_CHECKING:
    import jax

#: XLA's CPU client keeps a device's number in 11 bits.
MAX_DEVICES = 2048


def topology(target: Any) -> "list[jax.Device]":
    """Returns `target.jax_devices` CPU devices of this process; raises TargetError where it can't have as many."""
    import jax

    provide_devices(target.jax_devices)
    return jax.devices("cpu")[: target.jax_devices]


def provide_devices(count: int) -> None:
    """Gives this process `count` CPU devices if JAX hasn't started yet; raises TargetError if it has fewer."""
    import jax

    if count > MAX_DEVICES:
        message = f"a plan for {count:,} CPU devices can't be compiled: XLA gives a process {MAX_DEVICES:,} at most"
        raise TargetError(message)
    forced = "xla_force_host_platform" in os.environ.get("XLA_FLAGS", "")
    if count > jax.config.values["jax_num_cpu_devices"] and not forced:
        provide_threads(count)
        # JAX refuses to change the number once its devices exist; whether there are enough is checked below.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    present = len(jax.devices("cpu"))
    if present < count:
        message = f"this plan needs {count} CPU devices and JAX started with {present}; set JAX_NUM_CPU_DEVICES={count}"
        raise TargetError(message)
