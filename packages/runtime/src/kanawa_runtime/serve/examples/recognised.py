"""Held-out pictures with what they are, and what the model takes them for."""

from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.contracts import DataSource, Environment, Shown

from kanawa_runtime.runs.media import Medium, png
from kanawa_runtime.serve.examples.sampler import HeldOutSampler, batch_of, reduced


class RecognitionSampler(HeldOutSampler):
    """Shows pictures of a classifier, or of pairs: each with its label or text, and which one the model picks."""

    about = "Held-out pictures with their label or text; where the model picks another one, it comes after the arrow."
    count = 12

    def __init__(self, model: Any, source: DataSource, environment: Environment) -> None:
        """Takes a model that is `Recognises`."""
        super().__init__(source, environment)
        self._recognise = jax.jit(lambda p, s, batch: kn.functional(model, "recognise")(p, s, batch)[0])

    def shown(self, rows: list[dict[str, np.ndarray]], params: Any, state: Any) -> list[Medium]:
        """Returns the pictures with their words."""
        with self._environment.active():
            picked = np.asarray(self._recognise(params, state, batch_of(self._source, rows)))
        shown = [self._source.shown(row) or Shown("") for row in rows]
        labels = "target_ids" in rows[0]
        own = [int(row["target_ids"]) for row in rows] if labels else list(range(len(shown)))
        names = list(self._source.class_names) if labels else [one.text for one in shown]
        made = []
        for one, truth, choice in zip(shown, own, picked.tolist(), strict=True):
            # Two rows may have one text.
            same = truth == choice or (not labels and names[truth] == names[choice])
            text = one.text if same else f"{one.text} → {names[choice] if choice < len(names) else choice}"
            made += [] if one.image is None else [png(reduced(one.image), text)]
        return made
