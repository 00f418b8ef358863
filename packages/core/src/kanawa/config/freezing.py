"""Freezing a tree: every problem in it is found and reported at once, then nothing can change.

A role, an abstract Configurable, is a problem: a config of one can't be built, and the error says what fills it.
"""

from typing import Any

from kanawa.config.callables import Catalog
from kanawa.config.field_types import FieldTypeError
from kanawa.config.paths import join_path
from kanawa.config.sentinels import REQUIRED, SentinelError
from kanawa.config.traverse import walk_keys
from kanawa.config.values import ATOMS, Node
from kanawa.errors import ConfigError, KanawaError


class AbstractRoleError(ConfigError):
    """A role was used where an implementation of it belongs."""


def is_role(cls: type) -> bool:
    """Returns whether a class is abstract: it says so itself, or it leaves abstract methods open."""
    return bool(getattr(cls, "__abstractmethods__", ())) or vars(cls).get("_abstract", False)


def role_problem(cls: type) -> str:
    """Returns why a role can't be built and what fills it, for an error message."""
    methods = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    left_open = f" (abstract: {methods})" if methods else ""
    filled = Catalog.fillers(cls) if Catalog.fillers is not None else ""
    advice = filled or "use the Config of a class that implements it"
    return f"{cls.__qualname__} is a role, not an implementation{left_open}; {advice}"


def refuse_role(cls: type) -> None:
    """Raises AbstractRoleError where a class is a role."""
    if is_role(cls):
        raise AbstractRoleError(role_problem(cls))


class IncompleteConfigError(ConfigError):
    """A config can't be frozen; `problems` lists everything found, each with its path."""

    def __init__(self, what: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{what} has {count}:", *problems]))


def freeze_tree(root: Any) -> None:
    """Freezes every node under `root`, or raises IncompleteConfigError and freezes nothing."""
    # Listed once: a check may read any node, and none may be frozen until all of them are sound.
    # What is frozen was sound when it was, and every config in it as well.
    nodes = list(walk_keys(root, into=lambda node: not node.is_frozen))
    problems = [problem for keys, node in nodes for problem in _problems(node, join_path(keys))]
    if problems:
        raise IncompleteConfigError(type(root).__qualname__, problems)
    for _, node in nodes:
        node.freeze_in_place()


def _problems(node: Any, path: str) -> list[str]:
    problems: list[str] = []
    prefix = f"{path}." if path else ""
    target = node._target
    if target is not None and is_role(target):
        problems.append(f"{path}: {role_problem(target)}" if path else role_problem(target))
    for name, field in node.fields().items():
        value = vars(node)[name]
        if value is REQUIRED:
            problems.append(f"{prefix}{name} is REQUIRED and not set ({field.label})")
        elif type(value) in ATOMS or isinstance(value, Node):
            continue
        else:
            # Lists and dicts may have been changed in place since they were checked.
            try:
                field.admit(value, where=prefix + name, copy=False)
            except FieldTypeError as error:
                problems.append(str(error))
    return problems + _own_check(node, path)


def _own_check(node: Any, path: str) -> list[str]:
    try:
        problems = node.check()
    except SentinelError:
        # It depends on a value that is missing, or that the parent has yet to set: the copy the
        # parent sets and freezes is checked then.
        return []
    except KanawaError:
        raise
    except Exception as error:  # a check of somebody's own, which took it that the values are sound
        named = f"{type(node).__module__}:{type(node).__qualname__}.check"
        problems = [f"{named} raised {type(error).__name__}: {error}; these values can't be right, or the check isn't"]
    return [f"{path}: {problem}" if path else problem for problem in problems]
