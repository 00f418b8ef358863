"""Where plugins' modules are read from, and whether any of them changed: what caches of their answers depend on."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
from pathlib import Path

from kanawa.plugins.manager import host


def source_file(module: str) -> Path | None:
    """Returns the file a module is read from, found without importing even its package; None for one without."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # The finder looks into the package's folders itself: `find_spec("a.b")` would import `a`.
        spec = importlib.machinery.PathFinder.find_spec(part, list(spec.submodule_search_locations))
    origin = None if spec is None else spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def plugins_signature() -> str:
    """Returns a digest of the plugins' versions and the age of their sources, which editors change."""
    packages = {state.value.partition(":")[0].partition(".")[0] for state in host().components()} | {"kanawa"}
    newest = 0
    for package in sorted(filter(None, packages)):
        file = source_file(package)
        if file is None:
            continue
        files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
        newest = max(newest, *(each.stat().st_mtime_ns for each in files))
    text = f"{host().plugin_set_digest()} {sorted(packages)} {newest}"
    return hashlib.sha256(text.encode()).hexdigest()
