"""Where a pipeline's layers lie: the same number of places on every stage, some of them empty."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.errors import ShardingError


@dataclasses.dataclass(frozen=True)
class Places:
    """Runs of neighbouring layers, dealt out in turn: run c lies on stage c mod S and is passed in round c // S.

    All stages run one program, so every run has as many places as the longest run has layers, and a stream passes an
    empty place unchanged. Embedding and head don't count: stages share them by vocabulary (see `strategies.pipeline`),
    so the most even split is the fastest. `counts` are the layers of each run; empty: as even as can be.
    """

    num_layers: int
    stages: int
    rounds: int = 1
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuses counts that aren't one a run, or don't add up to the layers."""
        if self.counts and (len(self.counts) != self.runs or sum(self.counts) != self.num_layers):
            message = (
                f"layers_of_runs has {len(self.counts)} numbers that add up to {sum(self.counts)}; expected "
                f"{self.runs} ({self.stages} stages x {self.rounds} rounds) that add up to {self.num_layers}"
            )
            raise ShardingError(message)

    @property
    def runs(self) -> int:
        """Returns how many runs there are."""
        return self.stages * self.rounds

    @property
    def per_run(self) -> int:
        """Returns the places of one run."""
        return max(self.of_runs)

    @functools.cached_property
    def of_runs(self) -> tuple[int, ...]:
        """Returns the layers of each run, in the model's order; the first runs are the longer ones."""
        least, longer = divmod(self.num_layers, self.runs)
        return self.counts or tuple(least + (run < longer) for run in range(self.runs))

    @property
    def of_stages(self) -> tuple[int, ...]:
        """Returns the layers of each stage, in all its rounds."""
        return tuple(sum(self.of_runs[stage :: self.stages]) for stage in range(self.stages))

    @property
    def even(self) -> bool:
        """Whether no place is empty."""
        return min(self.of_runs) == self.per_run

    @functools.cached_property
    def layers(self) -> np.ndarray:
        """Returns the layer in each place, int [S, R, places]; -1 where it is empty."""
        table = np.full((self.runs, self.per_run), -1)
        for run, layers in enumerate(np.split(np.arange(self.num_layers), np.cumsum(self.of_runs)[:-1])):
            table[run, : len(layers)] = layers
        return table.reshape(self.rounds, self.stages, self.per_run).swapaxes(0, 1)

    @functools.cached_property
    def of_layers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns each layer's (stage, round, place), int [layers] each."""
        stage, turn, place = np.nonzero(self.layers >= 0)
        order = np.argsort(self.layers[stage, turn, place])
        return stage[order], turn[order], place[order]

    def split(self, leaf: jax.Array) -> jax.Array:
        """Returns [layers, …] as [S, R, places, …]; an empty place repeats a neighbour, whose numbers are finite."""
        k, rest = self.per_run, leaf.shape[1:]
        # Slices and a concatenation: their gradients are as cheap, where a gather's would be a scatter.
        parts, start = [], 0
        for length, alike in itertools.groupby(self.of_runs):
            count = len(list(alike))
            part = leaf[start : start + count * length].reshape(count, length, *rest)
            start += count * length
            if length < k:
                last = part[:, -1:] if length else jnp.broadcast_to(leaf[:1], (count, 1, *rest))
                part = jnp.concatenate([part, *[last] * (k - length)], 1)
            parts.append(part)
        runs = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
        # Layer order is round, stage, place: neighbouring runs lie on neighbouring stages, so that a roll hands on.
        return runs.reshape(self.rounds, self.stages, k, *rest).swapaxes(0, 1)

    def join(self, leaf: jax.Array) -> jax.Array:
        """Undoes `split`, leaving empty places out."""
        k, rest = self.per_run, leaf.shape[3:]
        runs = leaf.swapaxes(0, 1).reshape(self.runs, k, *rest)
        parts, start = [], 0
        for length, alike in itertools.groupby(self.of_runs):
            count = len(list(alike))
            parts.append(runs[start : start + count, :length].reshape(-1, *rest))
            start += count
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
