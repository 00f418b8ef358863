"""Fake distributions for tests of plugins: metadata and modules in a temporary folder."""

import sys
import textwrap


def fake_distributions(tmp_path, monkeypatch):
    """Yields a function that installs fake distributions: real metadata, a fresh host."""
    from kanawa.plugins import PluginHost, set_host

    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv("KANAWA_SKIP_PLUGINS", raising=False)
    before = set(sys.modules)

    def install(name, entry_points=None, modules=None, version="1.0", requires=(), folder=site):
        folder.mkdir(exist_ok=True)
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        text = ""
        for group, entries in (entry_points or {}).items():
            text += f"[{group}]\n" + "".join(f"{line}\n" for line in entries) + "\n"
        (info / "entry_points.txt").write_text(text)
        for module, source in (modules or {}).items():
            (folder / f"{module}.py").write_text(textwrap.dedent(source))
        return site

    old = set_host(PluginHost())
    yield install
    set_host(old)
    for module in set(sys.modules) - before:
        if str(site) in (getattr(sys.modules[module], "__file__", None) or ""):
            del sys.modules[module]
