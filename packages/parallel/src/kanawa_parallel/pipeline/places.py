"""Where a pipeline's layers lie: the same number of places on every stage, some of them empty."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Places:
    """Runs of neighbouring layers, dealt out in turn: run c lies on stage c mod S and is passed in round c // S.

    All stages run one program, so every run has as many places as the longest run has layers, and a stream passes an
    empty place unchanged. Embedding and head don't count: all stages share them (see `strategies.pipeline`), so the
    most even split is the fastest.
    """

    num_layers: int
    stages: int
    rounds: int = 1

    @property
    def runs(self) -> int:
        """Returns how many runs there are."""
        return self.stages * self.rounds

    @property
    def per_run(self) -> int:
        """Returns the places of one run."""
        return -(-self.num_layers // self.runs)

    @property
    def longer(self) -> int:
        """Returns how many runs, the first ones, have a layer in each place; the others have one layer less."""
        return self.num_layers - self.runs * (self.per_run - 1)

    @property
    def even(self) -> bool:
        """Whether no place is empty."""
        return self.longer == self.runs

    @functools.cached_property
    def layers(self) -> np.ndarray:
        """Returns the layer in each place, int [S, R, places]; -1 where it is empty."""
        table = np.full((self.runs, self.per_run), -1)
        for run, layers in enumerate(np.array_split(np.arange(self.num_layers), self.runs)):
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
        runs = leaf[: self.longer * k].reshape(self.longer, k, *rest)
        if not self.even:
            # Slices and a concatenation: their gradients are as cheap, where a gather's would be a scatter.
            short = leaf[self.longer * k :].reshape(self.runs - self.longer, k - 1, *rest)
            last = short[:, -1:] if k > 1 else jnp.broadcast_to(leaf[:1], (len(short), 1, *rest))
            runs = jnp.concatenate([runs, jnp.concatenate([short, last], 1)])
        # Layer order is round, stage, place: neighbouring runs lie on neighbouring stages, so that a roll hands on.
        return runs.reshape(self.rounds, self.stages, k, *rest).swapaxes(0, 1)

    def join(self, leaf: jax.Array) -> jax.Array:
        """Undoes `split`, leaving empty places out."""
        k, rest = self.per_run, leaf.shape[3:]
        runs = leaf.swapaxes(0, 1).reshape(self.runs, k, *rest)
        if self.even:
            return runs.reshape(-1, *rest)
        full, short = runs[: self.longer], runs[self.longer :, : k - 1]
        return jnp.concatenate([full.reshape(-1, *rest), short.reshape(-1, *rest)])
