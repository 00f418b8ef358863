"""How other shards' keys reach a shard, and how their gradients get home: around a ring, or all at once.

At step t, shard i has the keys of shard (i - t) mod `shards`, along mesh `axes`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Ring:
    """Keys hop to the next shard each step, and their gradients one step behind them (Liu et al. 2023,
    arXiv:2310.01889): a shard never holds more than two parts.
    """

    shards: int
    axes: tuple[str, ...]

    def depart(self, keys: Arrays) -> Arrays:
        """Returns the state from which step 1 reads: the previous shard's keys."""
        return self._hop(keys, 1)

    def read(self, state: Arrays, t: Any, index: jax.Array) -> Arrays:
        """Returns what has arrived."""
        del t, index
        return state

    def advance(self, state: Arrays) -> Arrays:
        """Returns the next step's state, independent of what is computed now, so that both overlap."""
        return self._hop(state, 1)

    def collect(self, own: Arrays, index: jax.Array) -> Arrays:
        """Returns the collected gradients after step 0: the shard's own."""
        del index
        return own

    def add(self, collected: Arrays, grads: Arrays, t: Any, index: jax.Array) -> Arrays:
        """Returns `collected` with the gradients of the keys met at step `t` added."""
        del t, index
        # The sum travels one step behind its keys: it arrives where they are now, just as their next gradient is ready.
        arrived = self._hop(collected, 1)
        return {name: arrived[name] + grad for name, grad in grads.items()}

    def bring_home(self, collected: Arrays, steps: int) -> Arrays:
        """Returns the whole gradient of a shard's own keys: the sums, sent back over all steps at once."""
        return self._hop(collected, -steps) if steps else collected

    def _hop(self, arrays: Arrays, by: int) -> Arrays:
        pairs = [(i, (i + by) % self.shards) for i in range(self.shards)]
        return {name: jax.lax.ppermute(x, self.axes, pairs) for name, x in arrays.items()}


@dataclasses.dataclass(frozen=True)
class Gather:
    """Every shard gathers all keys, in the forward pass and again in the backward (Llama 3, section 3.3.2)."""

    shards: int
    axes: tuple[str, ...]

    def depart(self, keys: Arrays) -> Arrays:
        """Returns the keys of all shards: [shards, …]."""
        return {name: jax.lax.all_gather(x, self.axes) for name, x in keys.items()}

    def read(self, state: Arrays, t: Any, index: jax.Array) -> Arrays:
        """Returns one shard's keys."""
        source = (index - t) % self.shards
        return {name: jax.lax.dynamic_index_in_dim(x, source, keepdims=False) for name, x in state.items()}

    def advance(self, state: Arrays) -> Arrays:
        """Returns the state: nothing is on its way."""
        return state

    def collect(self, own: Arrays, index: jax.Array) -> Arrays:
        """Returns gradients by shard: [shards, …]."""
        empty = {name: jnp.zeros((self.shards, *x.shape), x.dtype) for name, x in own.items()}
        return self.add(empty, own, 0, index)

    def add(self, collected: Arrays, grads: Arrays, t: Any, index: jax.Array) -> Arrays:
        """Returns the gradients with one shard's part added."""
        source = (index - t) % self.shards
        return {name: collected[name].at[source].add(grad) for name, grad in grads.items()}

    def bring_home(self, collected: Arrays, steps: int) -> Arrays:
        """Returns the sum over shards of the own part."""
        del steps
        return {name: jax.lax.psum_scatter(x, self.axes) for name, x in collected.items()}
