"""Setting fields on every node of one role that has them, of any class."""

from collections.abc import Callable, Sequence
from typing import Any

import kanawa as kn
from kanawa.errors import ConfigError


def set_fields(cfg: kn.Config, target: Any, where: str, **values: Any) -> kn.Config:
    """Returns `cfg` with the fields set on every `target` under `where` that has all of them; errors as `edit_with`."""
    return edit_with(cfg, target, where, tuple(values), lambda node: node.set(**values))


def edit_with(cfg: kn.Config, target: Any, where: str, names: Sequence[str], edit: Callable[[Any], Any]) -> kn.Config:
    """Returns `cfg` with `edit` called on every `target` under `where` that has all fields `names`.

    Raises RewriteError without a target, and ConfigError, listing what each lacks, where none has these fields.
    """
    lacking: dict[str, str] = {}
    reached: list[kn.Config] = []

    def visit(node: Any) -> None:
        missing = [name for name in names if name not in node.fields()]
        if missing:
            lacking[type(node).__qualname__] = " and ".join(missing)
            return
        edit(node)
        reached.append(node)

    kn.replace(cfg, target=target, edit=visit, where=where)
    # Some may lack the field (a model may mix attention and recurrences); if all do, that is a mistake.
    if not reached:
        fits = "; ".join(f"{kind} has no {absent}" for kind, absent in sorted(lacking.items()))
        message = f"nothing under {where!r} takes {' and '.join(names)}: {fits}"
        raise ConfigError(message)
    return cfg
