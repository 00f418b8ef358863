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
_SEEDS = 2**32
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Asked:
    """One picture: its label's id (None of a model without labels) and the seed of its noise."""

    label: int | None
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


def label_id(made: Made, label: int | str) -> int:
    """Returns the id of a label, a name or a number; raises UsageError for one that the model doesn't know."""
    if not made.num_labels:
        message = f"the model makes pictures without labels, and {label!r} was asked for"
        raise UsageError(message)
    names = made.label_names
    if str(label) in names:
        return names.index(str(label))
    number = int(label) if str(label).isdecimal() else -1
    if 0 <= number < made.num_labels:
        return number
    known = f"0 to {made.num_labels - 1}"
    if names:
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        known = f"{shown}{did_you_mean(str(label), names)}, or their numbers, {known}"
    message = f"label {label!r} is none of the model's {made.num_labels}: {known}"
    raise UsageError(message)


class PictureMaker:
    """Makes pictures with one model; the program is compiled at the first call, one with guidance and one without."""

    def __init__(
        self, model: MakesPictures, params: Any, state: Any = None, environment: Environment | None = None
    ) -> None:
        """Takes a built model and its parameters."""
        self.made: Made = type(model).made_by(model.config)
        self.environment = for_purpose(environment or Environment(), "prefill")
        self.load(params, state)

        def make(params: Any, state: Any, labels: Any, seeds: Any, guidance: Any) -> Any:
            return kn.functional(model, "make_pictures")(params, state, labels, seeds, guidance)[0]

        self._make = jax.jit(make)

    def load(self, params: Any, state: Any = None) -> None:
        """Takes other parameters of the same model; no program is compiled again."""
        self.params, self.state = params, state or {}

    def unload(self) -> None:
        """Frees the parameters."""
        self.params, self.state = None, {}

    def make(self, asked: Sequence[Asked], guidance: float | None = None) -> np.ndarray:
        """Returns the pictures, [N, height, width, channels]: uint8, or fp32 latents of a model without a decoder."""
        made = [self._some(asked[at : at + ROWS], guidance) for at in range(0, len(asked), ROWS)]
        return np.concatenate(made) if made else np.zeros((0, *self.made.shape), np.uint8)

    def _some(self, asked: Sequence[Asked], guidance: float | None) -> np.ndarray:
        # Always as many rows, so that nothing is compiled again; a row doesn't depend on the others.
        rows = [*asked, *[asked[-1]] * (ROWS - len(asked))]
        labels = None if rows[0].label is None else jnp.asarray([row.label for row in rows], jnp.int32)
        seeds = jnp.asarray([row.seed % _SEEDS for row in rows], jnp.uint32)
        # A weight of 1 is the model as it is, which takes half the work.
        strength = None if labels is None or guidance in (None, 1.0) else jnp.full(ROWS, guidance, jnp.float32)
        with self.environment.active():
            return np.asarray(self._make(self.params, self.state, labels, seeds, strength))[: len(asked)]
