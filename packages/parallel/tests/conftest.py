"""Strict JAX for every test of parallel: eight CPU devices, no implicit promotion."""

import sys
import textwrap

import eight_devices  # noqa: F401
import jax
import pytest
from drills import settle_hypothesis
from kanawa.plugins import PluginHost, set_host

settle_hypothesis()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Returns a function that installs a stranger's distribution: its entry points' metadata and one module."""

    def install(module, source, **groups):
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"[kanawa.{kind}]\n" + "\n".join(entries) for kind, entries in groups.items()]
        (info / "entry_points.txt").write_text("\n\n".join(lines) + "\n")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        set_host(PluginHost())

    monkeypatch.syspath_prepend(str(tmp_path))
    before, old = set(sys.modules), set_host(PluginHost())
    yield install
    set_host(old)
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
