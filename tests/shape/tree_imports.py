"""Imports of a package's files as a graph: which file and which folder imports which, arrows up, circles."""

import ast
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Arrow:
    """One import: the importing and the imported module, both of one package, and where it stands."""

    importer: str
    imported: str
    where: str


def names_imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute name) of everything imported, names of a from-import included, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *filter(None, [base])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def arrows(files: Mapping[str, pathlib.Path]) -> list[Arrow]:
    """Returns the imports among modules (dotted name to file); of anything else nothing."""
    found = []
    for module, path in files.items():
        tree = ast.parse(path.read_text(), filename=str(path))
        for line, name in names_imported(tree, module, path.name == "__init__.py"):
            imported = _module_of(name, files)
            if imported is not None and imported != module:
                found.append(Arrow(module, imported, f"{path}:{line}"))
    return found


def _module_of(name: str, files: Mapping[str, pathlib.Path]) -> str | None:
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name or None


def package_files(source: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the modules under a package's `src` folder by dotted name."""
    files = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def folder_of(module: str) -> str:
    """Returns the folder or file at a package's top that a module lies in; empty for the package itself."""
    return ".".join(module.split(".")[1:2])


def arrows_up(found: Iterable[Arrow], floors: Iterable[Iterable[str]]) -> list[Arrow]:
    """Returns the imports that don't go to a lower floor; those of the package's own file are free."""
    rank = {name: number for number, floor in enumerate(floors) for name in floor}
    up = []
    for arrow in found:
        here, there = folder_of(arrow.importer), folder_of(arrow.imported)
        if here and here != there and (not there or rank.get(there, len(rank)) >= rank.get(here, -1)):
            up.append(arrow)
    return up


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Returns the groups of names that reach each other, each sorted (Tarjan's strongly connected components)."""
    following: dict[str, list[str]] = {}
    for here, there in edges:
        following.setdefault(here, []).append(there)
        following.setdefault(there, [])
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        path.append(name)
        for other in following[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in path:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in following:
        if name not in number:
            visit(name)
    return sorted(found)


def folder_circles(found: Iterable[Arrow], files: Mapping[str, pathlib.Path]) -> list[list[str]]:
    """Returns the circles among folders that lie beside each other, at any depth."""
    folders = {module for module, path in files.items() if path.name == "__init__.py"}
    edges = set()
    for arrow in found:
        here, there = arrow.importer.split("."), arrow.imported.split(".")
        for depth in range(1, min(len(here), len(there))):
            pair = ".".join(here[: depth + 1]), ".".join(there[: depth + 1])
            if here[:depth] == there[:depth] and pair[0] != pair[1] and folders >= {*pair}:
                edges.add(pair)
    return circles(sorted(edges))
