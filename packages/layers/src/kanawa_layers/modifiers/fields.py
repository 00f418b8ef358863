"""Setting fields on every node of one role that has them, of any class."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import kanawa as kn
from kanawa.contracts import SequenceMixer
from kanawa.errors import ConfigError


class SetFields(kn.Modifier):
    """Sets fields on every `target` under `where` that has them; an implementation says which."""

    class Config(kn.Modifier.Config):
        where: str = "**"

    target: ClassVar[type[kn.Configurable]] = SequenceMixer

    @abc.abstractmethod
    def values(self) -> dict[str, Any]:
        """Returns the fields' values by name."""

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the fields set; raises what `edit_with` raises."""
        return set_fields(cfg, self.target, self.config.where, **self.values())


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
