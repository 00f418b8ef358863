"""What a preflight can say about Trainium without touching one."""

from glob import glob
from importlib.util import find_spec

from kanawa.plugins import Finding

_INDEX = "AWS's package index (https://awsdocs-neuron.readthedocs-hosted.com)"
_INSTALL = "https://awsdocs-neuron.readthedocs-hosted.com (packages jax-neuronx and libneuronxla)"


def findings() -> list[Finding]:
    """Returns whether a Trainium chip here would be used."""
    if not glob("/dev/neuron[0-9]*"):
        return [
            Finding(
                "ok",
                "neuron",
                "this machine has no Trainium chip; targets are planned, not compiled",
            )
        ]
    if find_spec("libneuronxla") is None:
        message = "this machine has Trainium chips but no Neuron plugin for JAX: JAX uses the CPU"
        return [Finding("error", "neuron", message, f"install it from {_INSTALL}")]
    if not _has_nki():
        message = (
            "the Neuron plugin for JAX is installed, NKI is not: programs with this package's kernels won't compile"
        )
        return [Finding("warning", "neuron", message, f"install nki 0.7 or newer from {_INDEX}, not from PyPI")]
    return [Finding("ok", "neuron", "the Neuron plugin for JAX is installed, and NKI")]


def _has_nki() -> bool:
    # PyPI has an empty package of that name.
    return find_spec("nki") is not None and find_spec("nki.isa") is not None
