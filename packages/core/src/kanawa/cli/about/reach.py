"""What a modifier reaches, read from its code: the roles it replaces, and the values of a config it sets."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

#: Stands for the config that is rewritten, wherever it is passed.
_CONFIG = object()
#: Calls followed from the modifier into helpers of its own package.
_MOST_CALLS = 4


def reach(modifier: type) -> list[str]:
    """Returns names of roles and classes whose nodes change, and paths that are set, in the order of the code.

    It is what the code says, not what it does: a target that is computed isn't seen.
    """
    call = inspect.unwrap(modifier.__call__)
    rewritten = list(inspect.signature(call).parameters)[1]
    return list(dict.fromkeys(_Reader(modifier, call, {rewritten: _CONFIG}, _MOST_CALLS).reached()))


class _Reader:
    """Reads one function; `given` are the objects that its caller passes for parameters."""

    def __init__(self, owner: type, function: Any, given: dict[str, Any], follow: int) -> None:
        function = inspect.unwrap(function)
        self.owner, self.given, self.follow = owner, given, follow
        self.globals = function.__globals__
        self.home = function.__module__.partition(".")[0]
        try:
            self.tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError):
            self.tree = ast.Module([], [])

    def reached(self) -> Iterator[str]:
        """Yields what the function and its helpers reach."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield from self._call(node)

    def _call(self, node: ast.Call) -> Iterator[str]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "replace":
            targets = [word.value for word in node.keywords if word.arg == "target"]
            yield from (reached for target in targets for reached in self._names(target))
        elif name == "set" and isinstance(node.func, ast.Attribute):
            path = self._path(node.func.value)
            yield from (f"{path}{word.arg}" for word in node.keywords if word.arg and path is not None)
        elif self.follow:
            yield from self._helper(node)

    def _helper(self, node: ast.Call) -> Iterator[str]:
        """Follows a call of a function of the same package, or of a method of the modifier's own."""
        function = self._object(node.func)
        if not inspect.isfunction(function) or function.__module__.partition(".")[0] not in (self.home, "kanawa"):
            return
        parameters = list(inspect.signature(function).parameters)
        own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        skipped = 1 if own and node.func.value.id == "self" else 0  # type: ignore[attr-defined]
        arguments = dict(zip(parameters[skipped:], node.args, strict=False))
        arguments |= {word.arg: word.value for word in node.keywords if word.arg}
        given = {name: value for name, arg in arguments.items() if (value := self._object(arg)) is not None}
        yield from _Reader(self.owner, function, given, self.follow - 1).reached()

    def _names(self, target: ast.AST) -> Iterator[str]:
        value = self._object(target)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, type):
                yield each.__qualname__.removesuffix(".Config")

    def _object(self, node: ast.AST) -> Any:
        """Returns what a name, a tuple, an attribute of `self` or of a module means; None for what isn't known."""
        if isinstance(node, ast.Tuple):
            return tuple(self._object(element) for element in node.elts)
        if isinstance(node, ast.Name):
            return self.given.get(node.id, self.globals.get(node.id))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "self":
                return getattr(self.owner, node.attr, None)
            return getattr(self.globals.get(node.value.id), node.attr, None)
        return None

    def _path(self, node: ast.AST) -> str | None:
        """Returns "execution." of `cfg.execution`; None for what isn't part of the config."""
        if isinstance(node, ast.Name):
            return "" if self.given.get(node.id) is _CONFIG else None
        if isinstance(node, ast.Attribute):
            above = self._path(node.value)
            return None if above is None else f"{above}{node.attr}."
        return None
