"""What the table of foreign names reads of a module. Modules have names in their configs, so the module tree builds
on this package and not the other way round.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from kanawa.arrays.spec import ParamSpec


class NamedModule(Protocol):
    """A node of a module tree, as `kanawa.module.Module` declares it."""

    name: str
    config: Any
    num_stacked: int | None
    param_specs: dict[str, ParamSpec]
    state_specs: dict[str, ParamSpec]

    @property
    def parent(self) -> "NamedModule | None":
        """The module that has this one as a child; None at the root."""
        ...

    @property
    def children(self) -> "Mapping[str, NamedModule]":
        """The modules below, by name."""
        ...

    @property
    def path(self) -> str:
        """Where the module is, for error messages."""
        ...

    def shared_module(self, name: str) -> "NamedModule":
        """Returns the module that an ancestor shares under a name."""
        ...

    def layer_number(self, child: str, index: int) -> int:
        """Returns the number that a copy of a stacked or listed child has in foreign names."""
        ...

    def first_layer(self, child: str) -> int:
        """Returns how many layers come before those of a child that is itself a stack."""
        ...
