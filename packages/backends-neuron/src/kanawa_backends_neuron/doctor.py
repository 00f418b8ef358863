"""What a preflight can say about Trainium without touching one."""

from glob import glob
from importlib.util import find_spec

from kanawa.plugins import Finding

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
    return [Finding("ok", "neuron", "the Neuron plugin for JAX is installed")]
