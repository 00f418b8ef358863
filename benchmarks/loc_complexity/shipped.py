"""What features that we ship in one file each cost: statements, entry points, and who else knows of them."""

import pathlib
from dataclasses import dataclass

from loc_complexity.statements import statements

_LAYERS = pathlib.Path(__file__).resolve().parents[2] / "packages" / "layers"
_IMPORT = "kanawa_layers"

#: Each feature and its file. `mixer` turns Kimi delta attention on, as it does any mixer.
SHIPPED = {
    "QK-clip": "attention/clipped.py",
    "multi-token prediction": "models/multi_token.py",
    "n-gram memory": "recurrent/ngram_memory.py",
    "hyper-connections (mHC)": "stack/hyper_connections.py",
    "Kimi delta attention": "recurrent/kimi_delta.py",
    "DeepSeek sparse attention": "attention/sparse.py",
}


@dataclass(frozen=True)
class Shipped:
    """D as in the other table; lines of entry points; other files of the package, recipes apart, that import it."""

    definition: int
    entry_points: int
    importers: tuple[str, ...]


def shipped(file: str) -> Shipped:
    """Returns the cost of one feature; `file` is relative to the package's sources."""
    sources = _LAYERS / "src" / _IMPORT
    module = f"{_IMPORT}.{file.removesuffix('.py').replace('/', '.')}"
    entries = [line for line in (_LAYERS / "pyproject.toml").read_text().splitlines() if f'"{module}:' in line]
    # Recipes of models that have the feature are its users, as a model of somebody else's would be.
    folders = [path for path in sources.iterdir() if path.is_dir() and path.name != "recipes"]
    files = [path for folder in folders for path in folder.rglob("*.py") if path != sources / file]
    others = [path for path in files if module in path.read_text()]
    count = len(statements(file, (sources / file).read_text()))
    return Shipped(count, len(entries), tuple(str(path.relative_to(sources)) for path in sorted(others)))


def shipped_table() -> str:
    """Returns the table as Markdown."""
    lines = ["| feature | file | D | entry points | other files that know of it |", "|---|---|--:|--:|--:|"]
    for name, file in SHIPPED.items():
        found = shipped(file)
        lines.append(f"| {name} | `{file}` | {found.definition} | {found.entry_points} | {len(found.importers)} |")
    return "\n".join(lines)
