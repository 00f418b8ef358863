"""Setting fields of attention layers, whatever their class: a modifier reaches every one that has the fields."""

from typing import Any

import kanawa as kn
from kanawa.contracts import SequenceMixer
from kanawa.errors import ConfigError


def set_on_attention(cfg: kn.Config, where: str, **values: Any) -> kn.Config:
    """Returns `cfg` with the fields set on every attention under `where` that has all of them.

    Raises ConfigError where there is attention, but none with these fields.
    """
    found: set[str] = set()
    reached: list[kn.Config] = []

    def edit(node: Any) -> None:
        found.add(type(node).__qualname__)
        if set(values) <= set(node.fields()):
            node.set(**values)
            reached.append(node)

    kn.replace(cfg, target=SequenceMixer, edit=edit, where=where)
    if not reached:
        names = " and ".join(values)
        message = f"no attention under {where!r} has {names}: found {', '.join(sorted(found))}"
        raise ConfigError(message)
    return cfg
