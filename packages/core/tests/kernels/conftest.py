"""Kernel tests: a host that always has core's own kernels."""

import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.plugins import PluginHost, set_host
from kanawa.plugins.discovery import Entry, Provider, discover

CORE = {
    "attention.any.reference": "attention.reference:ReferenceAttention",
    "grouped_matmul.any.reference": "grouped_matmul:ReferenceGroupedMatmul",
    "quantized_matmul.any.reference": "quantized_matmul:ReferenceQuantizedMatmul",
    "rms_norm.any.reference": "rms_norm:ReferenceRMSNorm",
    "matmul.any.xla": "matmul.problem:ReferenceMatmul",
    "token_exchange.any.padded": "token_exchange:PaddedTokenExchange",
    "linear_recurrence.any.reference": "linear_recurrence:ReferenceLinearRecurrence",
    "diagonal_recurrence.any.reference": "diagonal_recurrence:ReferenceDiagonalRecurrence",
    "softmax_cross_entropy.any.reference": "softmax_cross_entropy:ReferenceCrossEntropy",
}


#: What the tests compare kernels on, as the installed kernel tools declare it.
EXAMPLES = tuple(entry for found in discover() for entry in found.entries if entry.kind == "kernel_examples")
DILATED = Entry(kind="masks", name="dilated", value="kanawa.kernels.masks:dilated")


def provider(name, kernels):
    """Returns a distribution that offers kernels, as {name: "module:Class"}; core's also has core's mask."""
    entries = tuple(Entry(kind="kernels", name=n, value=v) for n, v in kernels.items())
    entries += (DILATED, *EXAMPLES) * (name == "kanawa")
    return Provider(name=name, version="1.0", entries=entries)


@pytest.fixture(autouse=True)
def core_host():
    """A host with core's kernels and the examples alone: what else this machine has installed must not matter."""
    found = {name: f"kanawa.kernels.{value}" for name, value in CORE.items()}
    old = set_host(PluginHost(discover=lambda: [provider("kanawa", found)]))
    yield
    set_host(old)


@pytest.fixture
def install():
    """Returns a function that replaces the host by one with these distributions' kernels."""

    def replace(**distributions):
        providers = [provider(name, kernels) for name, kernels in sorted(distributions.items())]
        set_host(PluginHost(discover=lambda: providers))

    return replace


@pytest.fixture
def core_metadata():
    """The kernels that the installed kanawa declares, as {name: value}."""
    core = [p for p in discover() if p.name == "kanawa"]
    if not core:
        pytest.skip("kanawa isn't installed, only on the path")
    return {e.name: e.value for e in core[0].entries if e.kind == "kernels"}


@pytest.fixture
def normal():
    """Returns a function from a shape to fp32 normals; drawn by NumPy, which compiles nothing."""
    rng = np.random.default_rng(7)
    return lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
