"""How JAX calls an NKI kernel: as the custom call that `nki.jit` makes on Neuron devices, by a callback elsewhere.

A process without Neuron devices runs kernels in NKI's simulator if it has one, and compiles programs for plans without
ever running them. Unverified on hardware.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import jax
import numpy as np
from kanawa.errors import KernelError
from kanawa.kernels.platform import current_platform

#: Physical cores of a logical one, where the environment doesn't say: the default of Trainium2's runtime and compiler.
_CORES = {"NC_v3d": 2, "trn2": 2}
_NEVER_RUN = "xla_ffi_python_cpu_callback"
_MISSING = (
    "{kernel} is an NKI kernel and this process has no NKI: install nki 0.7 or newer of AWS Neuron SDK 2.33 from AWS's "
    "package index (PyPI's nki is an empty placeholder; https://awsdocs-neuron.readthedocs-hosted.com), or choose "
    'another kernel with --set execution.kernels={{"{operation}":"{operation}.any.reference"}}'
)


def launch(
    kernel: str, outputs: Sequence[jax.ShapeDtypeStruct], operands: Sequence[jax.Array | None], *static: Any
) -> tuple[jax.Array, ...]:
    """Returns what an NKI kernel gives for its operands, None being an absent one, and its static arguments.

    `kernel` is "operation.module:function" below this package. Raises KernelError where NKI is missing: when tracing on
    Neuron devices, elsewhere when the program runs.
    """
    cores = logical_cores()
    if jax.default_backend() == "neuron":
        result = _nki(kernel).jit(_function(kernel))[cores](*operands, *static)
        return result if isinstance(result, tuple) else (result,)
    arrays = [x for x in operands if x is not None]
    name = kernel.partition(":")[2]
    if current_platform()[0] == "neuron":
        with jax.named_scope(name):
            return tuple(_planned(outputs, arrays))
    present = [x is not None for x in operands]

    def simulated(*arrays: Any) -> tuple[np.ndarray, ...]:
        nki = _nki(kernel)
        left = iter(arrays)
        filled = [np.asarray(next(left)) if here else None for here in present]
        result = nki.simulate(nki.jit(_function(kernel))[cores])(*filled, *static)
        return result if isinstance(result, tuple) else (result,)

    with jax.named_scope(name):
        return tuple(jax.pure_callback(simulated, tuple(outputs), *arrays, vmap_method="sequential"))


def _planned(outputs: Sequence[jax.ShapeDtypeStruct], arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Returns a call that compiles and never runs: a plan for Neuron, on a machine without, reads its scope's name.

    Its target is the one custom call that XLA's CPU backend always knows. JAX lowers no callback for Neuron.
    """
    call = jax.ffi.ffi_call(_NEVER_RUN, tuple(outputs), vmap_method="sequential")
    return call(*arrays, index=np.uint64(0))


def logical_cores() -> int:
    """Returns how many physical cores share a device's work: NEURON_LOGICAL_NC_CONFIG, else the chip's default."""
    set_to = os.environ.get("NEURON_LOGICAL_NC_CONFIG")
    if set_to is not None:
        return int(set_to)
    return _CORES.get(current_platform()[1] or "", 1)


def _nki(kernel: str) -> Any:
    try:
        # PyPI's placeholder has the package, but not this.
        import_module("nki.isa")
        return import_module("nki")
    except ImportError as missing:
        message = _MISSING.format(kernel=kernel, operation=kernel.partition(".")[0])
        raise KernelError(message) from missing


def _function(kernel: str) -> Callable[..., Any]:
    module, _, name = kernel.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"kanawa_backends_neuron.kernels.{module}"), name)
    return function
