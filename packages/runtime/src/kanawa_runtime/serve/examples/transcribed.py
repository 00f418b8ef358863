"""Held-out recordings with what is said in them, and what the model hears."""

from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.contracts import Environment, Transcribes

from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.runs.media import MOST_BYTES, Medium, wav
from kanawa_runtime.serve.examples.sampler import MediaSampler, batch_of, first_rows

_RECORDINGS = 4
#: Of a recording: four of them leave room in an event.
_MOST_SOUND = MOST_BYTES // _RECORDINGS - 1024


class TranscriptSampler(MediaSampler):
    """Plays recordings: each with its transcript and what the model writes by itself."""

    about = "Held-out recordings with their transcripts; what the model hears comes after the arrow."

    def __init__(self, model: Transcribes, source: SpeechSource, environment: Environment) -> None:
        super().__init__()
        self._source, self._environment = source, environment
        self._rows: list[dict[str, np.ndarray]] | None = None
        most = source.config.sequence_length

        def transcribe(params: Any, state: Any, audio: Any, lengths: Any) -> Any:
            return kn.functional(model, "transcribe")(params, state, audio, lengths, most)[0]

        self._transcribe = jax.jit(transcribe)

    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the recordings with both texts."""
        if self._rows is None:
            self._rows = first_rows(self._source, _RECORDINGS)
        if not self._rows:
            return []
        batch = batch_of(self._source, self._rows)
        with self._environment.active():
            heard = np.asarray(self._transcribe(params, state, batch.audio, batch.audio_lengths).ids)
        made = []
        for row, ids in zip(self._rows, heard, strict=True):
            said = self._source.text_of(row["target_ids"][row["loss_weights"] > 0])
            samples = np.asarray(row["audio"])[: int(row["audio_lengths"])]
            samples, rate = lowered(samples, self._source.config.sample_rate)
            made.append(wav(samples, rate, f"{said} → {self._source.text_of(ids)}"))
        return made

    def forget(self) -> None:
        """Frees the rows."""
        self._rows = None


def lowered(samples: np.ndarray, rate: int) -> tuple[np.ndarray, int]:
    """Returns sound at a rate lower by a whole factor, so that its file fits beside others in an event."""
    factor = -(-2 * len(samples) // _MOST_SOUND)
    if factor <= 1:
        return samples, rate
    means = samples[: len(samples) // factor * factor].reshape(-1, factor).mean(axis=1)
    return means, rate // factor
