"""Setting fields of nodes of one role, whatever their class: a modifier reaches every one that has the fields."""

from typing import Any

import kanawa as kn
from kanawa.errors import ConfigError


def set_fields(cfg: kn.Config, target: Any, where: str, **values: Any) -> kn.Config:
    """Returns `cfg` with the fields set on every `target` under `where` that has all of them.

    Raises RewriteError where there is no target, and ConfigError where there is one, but none with these fields.
    """
    found: set[str] = set()
    reached: list[kn.Config] = []

    def edit(node: Any) -> None:
        found.add(type(node).__qualname__)
        if set(values) <= set(node.fields()):
            node.set(**values)
            reached.append(node)

    kn.replace(cfg, target=target, edit=edit, where=where)
    if not reached:
        message = f"nothing under {where!r} has {' and '.join(values)}: found {', '.join(sorted(found))}"
        raise ConfigError(message)
    return cfg
