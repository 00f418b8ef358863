"""Writes the site's API reference: a page for each public subpackage, read from the source without importing it.

MkDocs calls these functions (`hooks` in mkdocs.yml). The pages exist only while the site is built, so none goes stale.
"""

import ast
import pathlib
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = (
    *("core", "layers", "parallel", "backends-cpu", "backends-gpu", "backends-tpu", "backends-neuron"),
    *("kernel-tools", "runtime"),
)
SHOWS_NOTHING = {"__init__", "__main__", "_version"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the reference to the navigation, which otherwise lists every page by hand."""
    config.nav.append({"API reference": [_section(package) for package in PACKAGES]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for package in PACKAGES:
        for name, modules in _subpackages(package).items():
            files.append(File.generated(config, f"api/{name}.md", content=_page(name, modules)))
    return files


def _section(package: str) -> dict[str, Any]:
    names = _subpackages(package)
    return {next(iter(names)).split(".")[0]: [{name: f"api/{name}.md"} for name in names]}


def _subpackages(package: str) -> dict[str, list[str]]:
    """Returns each subpackage, two names deep, and the public modules in it."""
    source = ROOT / "packages" / package / "src"
    pages: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py"), key=lambda path: (len(path.parts) > 1, path.as_posix())):
        parts = path.relative_to(source).with_suffix("").parts
        if path.stem in SHOWS_NOTHING or any(part.startswith("_") for part in parts):
            continue
        if _public_names(path):
            folders = parts[:-1]
            pages.setdefault(".".join(folders[:2]), []).append(".".join(parts))
    return dict(sorted(pages.items()))


def _public_names(path: pathlib.Path) -> list[str]:
    defines = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, defines) and node.name[0] != "_"]


def _page(name: str, modules: list[str]) -> str:
    return f"# {name}\n\n" + "\n".join(f"::: {module}\n" for module in modules)
