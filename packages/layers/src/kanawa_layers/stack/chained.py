"""Stacks of different kinds one after another, such as DeepSeek-V3's three dense layers before 58 sparse ones."""

from typing import Any

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences, Stack


class ChainedStack(Stack):
    """Runs `stacks` in order as one tower; each has its own parameters, scan and remat.

    `num_layers` is their sum; set, it is checked. Caches are one flat tuple over all layers.
    """

    stacks: tuple[Stack, ...]

    class Config(Stack.Config):
        num_layers: kn.Size | None = None  # type: ignore[assignment]  # None is their sum
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
        self._first: dict[str, int] = {}
        first = 0
        for i, stack in enumerate(self.config.stacks):
            self.add_child(f"stacks[{i}]", stack, input_dim=self.config.input_dim)
            self._first[f"stacks[{i}]"] = first
            first += _count(stack)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream, and the caches as a tuple with one entry a layer (None in training)."""
        extended: tuple[Any, ...] = ()
        for stack, first in zip(self.stacks, self._first.values(), strict=True):
            # One flat tuple for all stacks: decoding doesn't depend on how the tower is built.
            own = None if caches is None else caches[first : first + _count(stack.config)]
            x, own = stack(x, sequences, own)
            extended += () if own is None else tuple(own)
        return x, None if caches is None else extended

    @kn.nowrap
    def first_layer(self, child: str) -> int:
        """Returns how many layers come before those of `stacks[i]`."""
        return self._first[child]

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> tuple[Any, ...]:
        """Returns all layers' layouts in order."""
        return tuple(layout for stack in self.stacks for layout in stack.cache_spec(rows, length, dtype))

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters with each stack's layers separate."""
        named = zip(self._first, self.stacks, strict=True)
        unstacked = {name: stack.unstacked(params[name]) for name, stack in named if name in params}
        return {**params, **unstacked}


def _count(cfg: Stack.Config) -> int:
    """Returns the number of layers of a stack's config."""
    if isinstance(cfg, ChainedStack.Config):
        return sum(_count(stack) for stack in cfg.stacks)
    return cfg.num_layers
