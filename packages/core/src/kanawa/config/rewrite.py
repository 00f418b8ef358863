"""replace: swaps or edits every matching node of a config tree; and modifiers, which do so in their own name."""

import abc
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

from kanawa.config.configurable import Configurable
from kanawa.config.field_types import FieldTypeError
from kanawa.config.origin import caller, current_stage
from kanawa.config.paths import join_path, match_path, parse_path
from kanawa.config.record import Config
from kanawa.config.sentinels import Sentinel
from kanawa.config.traverse import walk_keys
from kanawa.errors import ConfigError


class RewriteError(ConfigError):
    """A replacement matches nothing, doesn't fit, or overlaps another one."""


class _Actor(NamedTuple):
    """Who replaces: equal actors may replace each other's work."""

    identity: Any
    label: str


class _Mark(NamedTuple):
    """Left on a node put in by `replace`: in which rewriting, and by whom."""

    changes: object
    actor: _Actor


_CHANGES: ContextVar[object | None] = ContextVar("kanawa_ledger", default=None)
_ACTOR: ContextVar[_Actor | None] = ContextVar("kanawa_actor", default=None)


@contextmanager
def rewriting() -> Iterator[None]:
    """Joins the rewrites inside: overlapping replacements by different actors are errors."""
    token = _CHANGES.set(_CHANGES.get() or object())
    try:
        yield
    finally:
        _CHANGES.reset(token)


class Modifier(Configurable):
    """Rewrites a config: changes it in place or returns another one.

    While it runs, replacements are made in its name, so that two modifiers that replace the same
    part of a tree are found out.
    """

    #: Whether it decides which rows the model learns from: composition applies such modifiers before it fits `--data`
    #: and a mesh rule to the model, and all others after.
    before_data: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, cfg: Config) -> Config:
        """Returns the rewritten config."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("__call__")
        if own is not None and not getattr(own, "__isabstractmethod__", False):
            cls.__call__ = _named(own)  # type: ignore[method-assign]


def _named(call: Callable[..., Config]) -> Callable[..., Config]:
    @functools.wraps(call)
    def wrapper(self: Modifier, cfg: Config) -> Config:
        label, detail = type(self).__qualname__, current_stage()[1]
        name = f"{label} ({detail})" if detail and detail != label else label
        with rewriting():
            token = _ACTOR.set(_Actor(object(), name))
            try:
                return call(self, cfg)
            finally:
                _ACTOR.reset(token)

    return wrapper


def replace(
    cfg: Config,
    *,
    target: Any,
    new: Config | Callable[[Any], Config] | None = None,
    edit: Callable[[Any], Config | None] | None = None,
    where: str = "**",
    allow_none: bool = False,
) -> list[str]:
    """Swaps every node matching `target` and `where` for `new`, or edits it; returns changed paths.

    `target` is a Configurable (a role too), a Config class, a callable used with `config_for`, or a
    tuple of these. With `new`, the outermost matches are swapped: a field set in `new` wins, one it
    leaves alone takes the value that was set on the old node. `new` may be a function that gets a
    copy of the old node and returns the new one. With `edit`, the function gets each node,
    innermost first; a config it returns takes the node's place, which is how to wrap one.
    Raises RewriteError for no match (unless allowed), a carried value of the wrong type, and a
    replacement inside, around or instead of one by another modifier.
    """
    if (new is None) == (edit is None):
        message = "replace() takes either new= or edit="
        raise RewriteError(message)
    targets = target if isinstance(target, tuple) else (target,)
    paths = [join_path(keys) for keys, node in walk_keys(cfg) if _is_target(node, targets) and match_path(where, keys)]
    if not paths and not allow_none:
        raise _no_match(cfg, targets, where)
    if new is not None:
        return _swap_all(cfg, paths, new)
    assert edit is not None
    return _edit_all(cfg, paths, edit)


def _is_target(node: Config, targets: tuple[Any, ...]) -> bool:
    for target in targets:
        if isinstance(target, type) and issubclass(target, Config):
            if isinstance(node, target):
                return True
        elif isinstance(target, type) and issubclass(target, Configurable):
            if node._target is not None and issubclass(node._target, target):
                return True
        elif node.callee is not None and node.callee is target:
            return True
    return False


def _swap_all(cfg: Config, paths: list[str], new: Config | Callable[[Any], Config]) -> list[str]:
    outermost: list[str] = []
    for path in paths:
        if not any(_is_within(path, outer) for outer in outermost):
            outermost.append(path)
    actor = _ACTOR.get() or _code_actor()
    for path in outermost:
        if not path:
            message = "can't swap the root of a config in place; use the new config itself"
            raise RewriteError(message)
        _check_overlap(cfg, path, actor)
    # All before any: a function that fails on the third node leaves the first two as they were.
    fresh = {path: _made(new, cfg.get(path), path) for path in outermost}
    for path in outermost:
        _swap(cfg, path, fresh[path], actor)
    return outermost


def _made(new: Config | Callable[[Any], Config], old: Config, path: str) -> Config:
    """Returns a fresh node for the place of `old`."""
    if isinstance(new, Config):
        return new.clone()
    if isinstance(new, type):
        message = f"replace(new={new.__qualname__}) got a class; write new={new.__qualname__}(…)"
        raise RewriteError(message)
    made = new(old.clone())
    if not isinstance(made, Config):
        message = (
            f"new({path!r}) returned {made!r}, expected the config that takes the place of "
            f"{type(old).__qualname__}; to change some nodes only, narrow target= or where=, or use edit="
        )
        raise RewriteError(message)
    return made.clone()


def _swap(cfg: Config, path: str, fresh: Config, actor: _Actor) -> None:
    old = cfg.get(path)
    _carry_over(old, fresh, path)
    changes = _CHANGES.get()
    if changes is not None:
        object.__setattr__(fresh, "_mark", _Mark(changes, actor))
    _put(cfg, path, fresh)


def _put(cfg: Config, path: str, node: Config) -> None:
    try:
        cfg.set_path(path, node)
    except FieldTypeError as error:
        message = f"can't put {type(node).__qualname__} at {path!r}: {error}"
        raise RewriteError(message) from error


def _carry_over(old: Config, fresh: Config, path: str) -> None:
    carried = old.fields().keys() & fresh.fields().keys()
    if type(old) is not type(fresh):
        # What others call the old class's parts says nothing about the new one's.
        carried = carried - old._schema.intrinsic
    for name in carried:
        value = vars(old)[name]
        # A default belongs to its class; only chosen values are carried over.
        if isinstance(value, Sentinel) or not old.is_set(name) or fresh.is_set(name):
            continue
        try:
            fresh._store(name, value, old._origins.get(name, ()))
        except FieldTypeError as error:
            message = (
                f"{path}.{name} can't carry over from {type(old).__qualname__} to "
                f"{type(fresh).__qualname__}: {error}; set {name!r} in the new config"
            )
            raise RewriteError(message) from error


def _edit_all(cfg: Config, paths: list[str], edit: Callable[[Any], Config | None]) -> list[str]:
    changed: list[str] = []
    # Innermost first: an edit that wraps a node must not get its own result again.
    for path in reversed(paths):
        node = cfg.get(path) if path else cfg
        before = node.clone()
        result = edit(node)
        if result is not None and result is not node:
            if not isinstance(result, Config) or not path:
                message = (
                    f"the edit of {path or 'the root'!r} returned {result!r}: it may return "
                    "nothing, or the config that takes the node's place (not for the root)"
                )
                raise RewriteError(message)
            _put(cfg, path, result)
            changed.append(path)
        elif node != before:
            changed.append(path)
    return changed[::-1]


def _is_within(path: str, outer: str) -> bool:
    inner_keys, outer_keys = parse_path(path), parse_path(outer)
    return inner_keys[: len(outer_keys)] == outer_keys


def _code_actor() -> _Actor:
    file, line = caller()
    return _Actor((file, line), f"the replace at {file}:{line}")


def _check_overlap(cfg: Config, path: str, actor: _Actor) -> None:
    changes = _CHANGES.get()
    if changes is None:
        return
    for other_path, node in cfg.walk():
        mark = node._mark
        if mark is None or mark.changes is not changes or mark.actor.identity == actor.identity:
            continue
        if _is_within(other_path, path) or _is_within(path, other_path):
            message = (
                f"{actor.label} would replace {path!r}, but {mark.actor.label} already replaced "
                f"{other_path!r}; narrow one of them with where=, or do both in one modifier"
            )
            raise RewriteError(message)


def _no_match(cfg: Config, targets: tuple[Any, ...], where: str) -> RewriteError:
    names = " or ".join(getattr(t, "__qualname__", repr(t)) for t in targets)
    elsewhere = [p or "the root" for p, node in cfg.walk() if _is_target(node, targets)]
    if elsewhere:
        hint = f"there are some at {', '.join(elsewhere[:6])}"
    else:
        kinds = {(n._target or type(n)).__qualname__ for _, n in cfg.walk()}
        hint = f"the config has {', '.join(sorted(kinds)[:12])}"
    return RewriteError(
        f"no {names} under {where!r} in {type(cfg).__qualname__}: {hint}; pass allow_none=True if that is fine"
    )
