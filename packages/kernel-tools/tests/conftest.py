"""Eight CPU devices, strict JAX, fake plugins, and a host with chosen kernels alone."""

import eight_devices  # noqa: F401
import jax
import pytest
from fake_distributions import fake_distributions
from kanawa.plugins import PluginHost, set_host
from kanawa.plugins.discovery import Entry, Provider, discover

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def fake_distribution(tmp_path, monkeypatch):
    """Returns a function that installs fake distributions: real metadata, a fresh host."""
    yield from fake_distributions(tmp_path, monkeypatch)


@pytest.fixture
def install():
    """Returns a function that replaces the host: these kernels, this package, core's masks."""
    found = discover()
    tools = next(one for one in found if one.name == "kanawa-kernel-tools")
    masks = tuple(entry for one in found if one.name == "kanawa" for entry in one.entries if entry.kind == "masks")

    def replace(**distributions):
        providers = [
            Provider(
                name=name,
                version="1.0",
                entries=(*masks * (name == "kanawa"), *(Entry(kind="kernels", name=n, value=v) for n, v in k.items())),
            )
            for name, k in sorted({"kanawa": {}, **distributions}.items())
        ]
        set_host(PluginHost(discover=lambda: [*providers, tools]))

    old = set_host(None)
    yield replace
    set_host(old)
