"""Held-out pictures with what they are, and what the model takes them for."""

from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.contracts import DataSource, Environment, Shown

from kanawa_runtime.runs.media import Medium, png
from kanawa_runtime.serve.examples.sampler import MediaSampler, batch_of, first_rows, reduced

_PICTURES = 12


class RecognitionSampler(MediaSampler):
    """Shows pictures of a classifier, or of pairs: each with its label or text, and which one the model picks."""

    about = "Held-out pictures with their label or text; where the model picks another one, it comes after the arrow."

    def __init__(self, model: Any, source: DataSource, environment: Environment) -> None:
        """Takes a model that is `Recognises`."""
        super().__init__()
        self._source, self._environment = source, environment
        self._rows: list[dict[str, np.ndarray]] | None = None
        self._recognise = jax.jit(lambda p, s, batch: kn.functional(model, "recognise")(p, s, batch)[0])

    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the pictures with their words."""
        if self._rows is None:
            self._rows = first_rows(self._source, _PICTURES)
        if not self._rows:
            return []
        with self._environment.active():
            picked = np.asarray(self._recognise(params, state, batch_of(self._source, self._rows)))
        shown = [self._source.shown(row) or Shown("") for row in self._rows]
        labels = "target_ids" in self._rows[0]
        own = [int(row["target_ids"]) for row in self._rows] if labels else list(range(len(shown)))
        names = list(self._source.class_names) if labels else [one.text for one in shown]
        made = []
        for one, truth, choice in zip(shown, own, picked.tolist(), strict=True):
            # Two rows may have one text.
            same = truth == choice or (not labels and names[truth] == names[choice])
            text = one.text if same else f"{one.text} → {names[choice] if choice < len(names) else choice}"
            made += [] if one.image is None else [png(reduced(one.image), text)]
        return made

    def forget(self) -> None:
        """Frees the rows."""
        self._rows = None
