"""One line about a component, read from its source: importing it may take seconds, and JAX with it."""

from __future__ import annotations

import ast
import functools
import itertools
import re

from kanawa.plugins import ComponentState
from kanawa.plugins.sources import source_file

_LEAD = re.compile(r"^`[\w.-]+`:\s+")
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)`\]])[.;:](?=\s+[A-Z`]|$)")
#: Begins with a variable or a function, which stays small.
_FORMULA = re.compile(r"[a-z]+\(|[a-z]\s?[*/:^=+-]")
#: Imports followed from where a component is named to where it is defined.
_MOST_IMPORTS = 3


def summary(state: ComponentState) -> str:
    """Returns the first sentence of a component's docstring or `#:` comment, else of its module's; "" without any."""
    module, _, name = state.value.partition(":")
    return first_sentence(_documentation(module, name))


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring on one line, without the component's own name before it."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    paragraph = _LEAD.sub("", paragraph).removeprefix("Returns ")
    ends = (end.start() for end in _SENTENCE_END.finditer(paragraph))
    # A semicolon between two sources in parentheses ends nothing.
    whole = (paragraph[:end] for end in ends if paragraph.count("(", 0, end) == paragraph.count(")", 0, end))
    line = next(whole, paragraph.rstrip("."))
    return line if _FORMULA.match(line) else line[:1].upper() + line[1:]


def _documentation(module: str, name: str, follow: int = _MOST_IMPORTS) -> str:
    tree = _tree(module)
    if tree is None:
        return ""
    node: ast.AST = tree
    for part in name.split("."):
        inner = _member(node, part)
        if inner is None:
            break
        node = inner
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node) or ""
    if isinstance(node, ast.Assign) and (comment := _comment_over(module, node.lineno)):
        return comment
    if isinstance(node, ast.ImportFrom) and node.module and not node.level and follow:
        return _documentation(node.module, name, follow - 1)
    return ast.get_docstring(tree) or ""


def _member(node: ast.AST, name: str) -> ast.AST | None:
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == name:
            return child
        if isinstance(child, ast.Assign) and any(isinstance(of, ast.Name) and of.id == name for of in child.targets):
            return child
        if isinstance(child, ast.ImportFrom) and any(name == (alias.asname or alias.name) for alias in child.names):
            return child
    return None


def _comment_over(module: str, line: int) -> str:
    """Returns the `#:` comment right over a line."""
    file = source_file(module)
    above = [] if file is None or line < 2 else file.read_text(encoding="utf-8").splitlines()[line - 2 :: -1]
    comment = [text[2:].strip() for text in itertools.takewhile(lambda text: text.startswith("#:"), above)]
    return " ".join(reversed(comment))


@functools.cache
def _tree(module: str) -> ast.Module | None:
    file = source_file(module)
    try:
        return None if file is None else ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
