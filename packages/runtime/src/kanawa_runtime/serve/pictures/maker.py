"""Pictures by a model that makes some: one compiled program for all of them, of a fixed number of rows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.composition.program_traits import for_purpose
from kanawa.contracts import Environment, Made, MakesPictures
from kanawa.errors import UsageError, did_you_mean
from kanawa.plugins import component, host

#: The catalog's kind of what makes noise a picture.
SAMPLERS = "picture_samplers"
#: Rows of a call: more are made in turn.
ROWS = 16
#: How far pictures go towards their labels or texts where nothing is said, as most papers show them.
GUIDANCE = 2.0
_SEEDS = 2**32


@dataclasses.dataclass(frozen=True)
class Asked:
    """One picture: its label's id, or the ids of its text (None of a model of neither), and the seed of its noise."""

    wish: int | tuple[int, ...] | None
    seed: int


def with_sampler(model: Any, sampler: str | None, steps: int | None) -> Any:
    """Returns a model's config with another sampler (None: its own) of other steps; its parameters fit as they are.

    Raises UsageError for an unknown one or less than one step, ConfigError for one that doesn't fit the objective.
    """
    if sampler is None and steps is None:
        return model
    changed = model.clone()
    if sampler is not None:
        names = [state.name for state in host().components(SAMPLERS) if state.state.usable]
        if sampler not in names:
            message = f"--sampler {sampler!r} is unknown{did_you_mean(sampler, names)}"
            raise UsageError(message)
        changed.set(sampler=component(SAMPLERS, sampler, asker="kanawa-runtime").Config())
    if steps is not None:
        if steps < 1:
            message = f"--steps {steps}: a picture takes one step at least"
            raise UsageError(message)
        changed.sampler.set(num_steps=steps)
    return changed


class PictureMaker:
    """Makes pictures with one model; the program is compiled at the first call, one with guidance and one without."""

    def __init__(
        self,
        model: MakesPictures,
        params: Any,
        state: Any = None,
        environment: Environment | None = None,
        rows: int = ROWS,
    ) -> None:
        """Takes a built model and its parameters; `rows` are made at a time."""
        self.rows = rows
        self.made: Made = type(model).made_by(model.config)
        self.environment = for_purpose(environment or Environment(), "prefill")
        self.load(params, state)

        def make(params: Any, state: Any, wanted: Any, seeds: Any, guidance: Any) -> Any:
            return kn.functional(model, "make_pictures")(params, state, wanted, seeds, guidance)[0]

        self._make = jax.jit(make)

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other parameters of the same model; no program is compiled again."""
        self.params, self.state = params, state or {}

    def unload(self) -> None:
        """Frees the parameters."""
        self.params, self.state = None, {}

    def make(self, asked: Sequence[Asked], guidance: float | None = None) -> np.ndarray:
        """Returns the pictures, [N, height, width, channels]: uint8, or fp32 latents of a model without a decoder."""
        return self.make_each(asked, [guidance] * len(asked))

    def make_each(self, asked: Sequence[Asked], guidance: Sequence[float | None]) -> np.ndarray:
        """Returns the pictures, each with guidance of its own: none at all, or all with some."""
        made = [self._some(asked[at : at + self.rows], guidance[at : at + self.rows]) for at in self._starts(asked)]
        return np.concatenate(made) if made else np.zeros((0, *self.made.shape), np.uint8)

    def _starts(self, asked: Sequence[Asked]) -> range:
        return range(0, len(asked), self.rows)

    def _some(self, asked: Sequence[Asked], guidance: Sequence[float | None]) -> np.ndarray:
        # Always as many rows, so that nothing is compiled again; a row doesn't depend on the others.
        more = self.rows - len(asked)
        rows = [*asked, *[asked[-1]] * more]
        seeds = jnp.asarray([row.seed % _SEEDS for row in rows], jnp.uint32)
        strength = None
        if rows[0].wish is not None and is_guided(guidance[0]):
            strength = jnp.asarray([*guidance, *[guidance[-1]] * more], jnp.float32)
        with self.environment.active():
            made = self._make(self.params, self.state, self._wanted(rows), seeds, strength)
            return np.asarray(made)[: len(asked)]

    def _wanted(self, rows: Sequence[Asked]) -> Any:
        """Returns labels [rows], or ids [rows, length], -1 past a text's end."""
        if rows[0].wish is None:
            return None
        if self.made.prompt_length is None:
            return jnp.asarray([row.wish for row in rows], jnp.int32)
        ids = np.full((len(rows), self.made.prompt_length), -1, np.int32)
        for place, row in enumerate(rows):
            assert isinstance(row.wish, tuple)
            ids[place, : len(row.wish)] = row.wish
        return jnp.asarray(ids)


def is_guided(guidance: float | None) -> bool:
    """Returns whether the model is asked twice: a weight of 1 is the model as it is, which takes half the work."""
    return guidance not in (None, 1.0)
