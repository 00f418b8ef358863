"""Starting from a part of another model: what is taken, what begins anew and what is left behind, each by name."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.plain import is_tuned
from kanawa.config import Config, match_path
from kanawa.contracts import StoredModel
from kanawa.errors import UsageError
from kanawa.module import Module, param_specs

from kanawa_runtime.runs.imported import fitted

_MOST_NAMED = 12


class InitFrom(Config):
    """The trainer's `init_from` slot: a new run's parameters come from `source`, a run or another library's folder.

    Every parameter here must be there, under its own path and in its shape, and every one there must be taken, but for
    what is named. `renames` maps paths, or beginnings of paths, here to those there; `fresh` are patterns of parameters
    here that begin anew; `unused` patterns of those there that are left behind. Without a source the one of
    `--init-from` is read. The model's state, such as running means, begins anew. With `where_needed`, a model that has
    all parameters in their shapes is taken whole, whatever is named.
    """

    source: str = ""
    renames: dict[str, str] = {}
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    where_needed: bool = False

    def needed_for(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Returns whether what is named matters for these parameters."""
        shapes = ({path: tuple(np.shape(leaf)) for path, leaf in each.items()} for each in (stored, wanted))
        return not self.where_needed or next(shapes) != next(shapes)


@dataclasses.dataclass(frozen=True)
class Account:
    """Which parameter here came from which there; which began anew; which there were left."""

    taken: Mapping[str, str]
    fresh: tuple[str, ...]
    left: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the fields of the event."""
        return {"taken": dict(self.taken), "fresh": list(self.fresh), "left": list(self.left)}

    def lines(self) -> list[str]:
        """Returns the lines to show."""
        lines = [f"{len(self.taken)} parameters were taken"]
        lines += [f"begun anew: {', '.join(self.fresh[:_MOST_NAMED])}{_more(self.fresh)}"] if self.fresh else []
        lines += [f"left behind: {', '.join(self.left[:_MOST_NAMED])}{_more(self.left)}"] if self.left else []
        return lines


def matched(cfg: InitFrom, stored: Mapping[str, Any], wanted: Mapping[str, Any], source: str) -> Account:
    """Returns what goes where; raises one UsageError with everything that doesn't fit and isn't named."""
    taken: dict[str, str] = {}
    fresh, problems = [], []
    for path, leaf in wanted.items():
        if any(match_path(pattern, path) for pattern in cfg.fresh):
            fresh.append(path)
            continue
        theirs = _renamed(path, cfg.renames)
        if theirs not in stored:
            near = difflib.get_close_matches(theirs, stored, n=2, cutoff=0.5)
            hint = f"; near: {', '.join(near)}" if near else ""
            problems.append(f"{path}: {source} has no {theirs}{hint}. Name it in renames, or in fresh")
        elif tuple(np.shape(stored[theirs])) != tuple(leaf.shape):
            shapes = f"{list(np.shape(stored[theirs]))} there, {list(leaf.shape)} here"
            problems.append(f"{path}: {theirs} has shape {shapes}. Name it in fresh to begin anew")
        else:
            taken[path] = theirs
    left = [path for path in stored if path not in set(taken.values())]
    problems += [
        f"{path} of {source} is left over. Name it in unused, or take it by renames"
        for path in left
        if not any(match_path(pattern, path) for pattern in cfg.unused)
    ]
    problems += [
        f"{kind} names {pattern!r}, which matches nothing"
        for kind, patterns, paths in (("fresh", cfg.fresh, wanted), ("unused", cfg.unused, stored))
        for pattern in patterns
        if not any(match_path(pattern, path) for path in paths)
    ]
    problems += [
        f"renames names {here!r}, and no parameter here is called so or begins so"
        for here in cfg.renames
        if not any(path == here or path.startswith(f"{here}.") for path in wanted)
    ]
    if problems:
        shown = "\n  ".join(problems[: 4 * _MOST_NAMED])
        more = f"\n  and {len(problems) - 4 * _MOST_NAMED} more" if len(problems) > 4 * _MOST_NAMED else ""
        message = f"init_from: the model in {source} doesn't fit, and nothing was started:\n  {shown}{more}"
        raise UsageError(message)
    return Account(taken, tuple(fresh), tuple(left))


def with_new_parts(
    cfg: InitFrom, stored: StoredModel, new: Mapping[str, Any], module: Module
) -> Mapping[str, Any]:  # fmt: skip
    """Returns the stored parameters; where parts of a model changed, in the module's weight forms, with its adapters.

    What begins anew is that of `new`.
    """
    if not (cfg.where_needed and is_tuned(module)):
        return stored.params
    begun = {path: new[path] for path in cfg.fresh}
    return fitted(dataclasses.replace(stored, params={**stored.params, **begun}), module)


def new_parts(before: Config, after: Config) -> InitFrom:
    """Returns how a changed model starts from the parameters of the one before.

    What is new, or of another shape, begins anew; what is no more is left behind; a model with it all is taken whole.
    """
    old, new = ({path: spec.shape for path, spec in _specs(cfg).items()} for cfg in (before, after))
    fresh = tuple(path for path, shape in new.items() if old.get(path) != shape)
    unused = tuple(path for path, shape in old.items() if new.get(path) != shape)
    return InitFrom(fresh=fresh, unused=unused, where_needed=True)


def _specs(model: Config) -> dict[str, Any]:
    module: Any = model.clone().build()
    return flatten_paths(param_specs(module))


def _renamed(path: str, renames: Mapping[str, str]) -> str:
    """Returns the path there, by the longest name that the path here is or begins with."""
    for here in sorted(renames, key=len, reverse=True):
        if path == here:
            return renames[here]
        if path.startswith(f"{here}."):
            return renames[here] + path[len(here) :]
    return path


def _more(names: tuple[str, ...]) -> str:
    return f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
