"""Logical statements of a file, whatever its layout: formatting, comments, docstrings and imports don't count.

Python is parsed; a compound statement counts once for its header. Anything else counts its lines that say something.
"""

import ast
import difflib
import functools
from collections.abc import Iterator

_IMPORTS = (ast.Import, ast.ImportFrom)
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@functools.lru_cache(maxsize=4096)
def statements(path: str, text: str) -> list[str]:
    """Returns the statements of a file in order, each as canonical text with its depth."""
    if path.endswith(".py"):
        return list(_of_block(ast.parse(text).body, 0))
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def changed(path: str, before: str, after: str) -> int:
    """Returns how many statements differ: added, removed, or replaced (counted once for each new one)."""
    old, new = statements(path, before), statements(path, after)
    total = 0
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            total += max(b - a, d - c)
    return total


def _of_block(body: list[ast.stmt], depth: int) -> Iterator[str]:
    for index, node in enumerate(body):
        if isinstance(node, _IMPORTS) or (index == 0 and _is_docstring(node)):
            continue
        yield f"{depth} {_header(node)}"
        for name in _BODIES:
            for part in getattr(node, name, []):
                if isinstance(part, ast.excepthandler | ast.match_case):
                    yield f"{depth} {type(part).__name__}"
                    yield from _of_block(part.body, depth + 1)
                else:
                    yield from _of_block([part], depth + 1) if not _is_docstring(part) else ()


def _header(node: ast.stmt) -> str:
    """Returns the statement without what it holds."""
    holds = {name: [] for name in _BODIES if hasattr(node, name)}
    if not holds:
        return ast.unparse(node)
    bare = type(node)(**{**{f: getattr(node, f) for f in node._fields if hasattr(node, f)}, **holds})
    bare.body = [ast.Pass()]
    if isinstance(node, ast.Try):
        return "try"
    return ast.unparse(ast.fix_missing_locations(ast.copy_location(bare, node)))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
