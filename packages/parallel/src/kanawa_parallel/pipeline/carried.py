"""What the ticks of early backwards pass on, and what a run of layers needs. Legend: S stages, k places of a run."""

from typing import Any, NamedTuple

import jax
from kanawa.contracts import Sequences


class Carry(NamedTuple):
    """What a tick passes on: activations, saved inputs and cotangents by stage, and summed gradients.

    `rest` is what gradients of weights still need, [slots, S, k, …]. With several rounds, `returned` are streams that
    left the last stage, and `sent_back` cotangents that left the first one, [slots, …].
    """

    moving: Any
    inputs: Any
    cotangents: Any
    layers: Any
    others: Any
    returned: Any = ()
    sent_back: Any = ()
    rest: Any = ()


class Held(NamedTuple):
    """What a run of layers needs besides trained parameters and its stream; the first three are [k, …]."""

    fixed: Any
    state: Any
    numbers: jax.Array
    facts: Sequences
    key: jax.Array

    def each(self) -> tuple[Any, Any, jax.Array]:
        """Returns what is [k, …]."""
        return self.fixed, self.state, self.numbers

    def at(self, places: tuple[Any, Any, jax.Array]) -> "Held":
        """Returns what other layers need of the same microbatch."""
        fixed, state, numbers = places
        return Held(fixed, state, numbers, self.facts, self.key)
