"""Inside `kanawa.plugins`: each file imports only files before it, inside functions too."""

import ast
from pathlib import Path

import kanawa.plugins

FOLDER = Path(kanawa.plugins.__file__).parent
#: From records to host. A function-level import is still a dependency: it only hides a cycle until it is called.
ORDER = (
    *("records", "schedules", "discovery", "states", "kinds", "catalog", "specs", "backend", "startup"),
    *("manager", "sources", "fillers", "devices", "fault", "asking"),
)


def imported(path):
    """Returns the files of this folder that a file imports, whatever function the import is in."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [node.module.removeprefix("kanawa.plugins.") for node in nodes if node.module.startswith("kanawa.plugins.")]
    for node in nodes:
        if node.module == "kanawa.plugins":
            names += [alias.name for alias in node.names]
    return set(names) & {file.stem for file in FOLDER.glob("*.py")}


def test_every_file_has_its_place():
    assert {path.stem for path in FOLDER.glob("*.py")} == {"__init__", *ORDER}


def test_no_file_imports_a_later_one():
    backwards = [
        f"{name} imports {other}"
        for name in ORDER
        for other in imported(FOLDER / f"{name}.py")
        if ORDER.index(other) >= ORDER.index(name)
    ]
    assert not backwards
