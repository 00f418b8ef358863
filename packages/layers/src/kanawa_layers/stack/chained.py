"""Stacks of different kinds one after another, such as DeepSeek-V3's three dense layers before 58 sparse ones."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences, Stack


class ChainedStack(Stack):
    """Runs `stacks` in order as one tower; each keeps its own parameters, scan and remat.

    `num_layers` is their sum; set, it is checked. Caches are one flat tuple over all layers.
    """

    class Config(Stack.Config):
        num_layers: kn.Size | None = None
        stacks: tuple[Stack.Config, ...] = kn.REQUIRED
        foreign: kn.foreign.Names = kn.foreign.Names(children={"stacks": ""})

        def check(self) -> list[str]:
            """Returns what is wrong with the stacks or their sum."""
            if not self.stacks:
                return ["stacks is empty, expected at least one stack"]
            total = sum(_count(stack) for stack in self.stacks)
            if self.num_layers in (None, total):
                return []
            return [f"num_layers is {self.num_layers}, but the stacks have {total} layers together; leave it unset"]

    def setup(self) -> None:
        """Declares the stacks."""
        self._names = tuple(f"stacks[{i}]" for i in range(len(self.config.stacks)))
        for name, stack in zip(self._names, self.config.stacks, strict=True):
            self.add_child(name, stack, input_dim=self.config.input_dim)
        counts = [_count(stack) for stack in self.config.stacks]
        self._first = {name: sum(counts[:i]) for i, name in enumerate(self._names)}
        self._counts = dict(zip(self._names, counts, strict=True))

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream, and the caches as a tuple with one entry a layer (None in training)."""
        extended: tuple[Any, ...] = ()
        for name, first in self._first.items():
            # One flat tuple for all stacks: who decodes needn't know how the tower is built.
            own = None if caches is None else caches[first : first + self._counts[name]]
            x, own = self.children[name](x, sequences, own)
            extended += () if own is None else tuple(own)
        return x, None if caches is None else extended

    @kn.nowrap
    def first_layer(self, child: str) -> int:
        """Returns how many layers come before those of `stacks[i]`."""
        return self._first[child]

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns all layers' layouts in order."""
        parts = (self.children[name].cache_spec(rows, length, dtype) for name in self._names)
        return tuple(layout for part in parts for layout in part)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with each stack's layers apart."""
        apart = {name: self.children[name].unstacked(params[name]) for name in self._names if name in params}
        return {**params, **apart}


def _count(cfg: Stack.Config) -> int:
    """Returns how many layers a stack's config stands for."""
    if isinstance(cfg, ChainedStack.Config):
        return sum(_count(stack) for stack in cfg.stacks)
    return cfg.num_layers
