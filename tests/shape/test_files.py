"""One idea per file: sizes, names, docstrings and unfinished work."""

import ast
import pathlib
import re
import statistics

MAX_LINES = 500
MAX_MEDIAN = 200
MAX_FUNCTION_LINES = 80
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "base2", "stuff"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
SHAPE = ("pyproject.toml", "README.md", "CHANGELOG.md")


def lines(source) -> int:
    return source.text.count("\n")


def test_no_file_is_longer_than_the_ceiling(sources, package_tests):
    long = [f"{s.where}: {lines(s)}" for s in [*sources, *package_tests] if lines(s) > MAX_LINES]
    assert not long, "split these, one idea a file:\n" + "\n".join(long)


def test_the_median_file_is_short(sources):
    assert statistics.median(lines(s) for s in sources if s.path.name != "__init__.py") <= MAX_MEDIAN


def test_functions_fit_on_a_screen(sources):
    long = [
        f"{source.where}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_names_say_something(sources, package_tests):
    vague = [
        source.where
        for source in [*sources, *package_tests]
        if SAYS_NOTHING & set(pathlib.Path(source.where).with_suffix("").parts)
    ]
    assert not vague, "name the idea: " + ", ".join(vague)


def test_every_module_says_what_it_is(sources):
    silent = [s.where for s in sources if ast.get_docstring(s.tree) is None]
    assert not silent, "\n".join(silent)


def test_nothing_is_left_unfinished(sources):
    left = [
        f"{source.where}:{number}: {line.strip()}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not left, "\n".join(left)


def test_libraries_do_not_print(sources):
    printing = [
        f"{source.where}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printing, "\n".join(printing)


def test_no_exception_is_swallowed_whole(sources):
    bare = [
        f"{source.where}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not bare, "\n".join(bare)


def test_every_package_has_the_same_shape(root):
    for package in sorted((root / "packages").iterdir()):
        missing = [name for name in SHAPE if not (package / name).is_file()]
        assert not missing, f"{package.name} lacks {missing}"
        folders = [p for p in (package / "src").iterdir() if not p.name.startswith(".")]
        assert len(folders) == 1, f"{package.name}: one import package in src"
        assert list((package / "tests").rglob("test_*.py")), f"{package.name} has no tests"
