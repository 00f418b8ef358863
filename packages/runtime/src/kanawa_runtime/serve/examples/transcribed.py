"""Held-out recordings with what is said in them, and what the model hears."""

from typing import Any

import jax
import kanawa as kn
import numpy as np
from kanawa.contracts import Environment, Transcribes

from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.runs.media import MOST_BYTES, Medium, wav
from kanawa_runtime.serve.examples.sampler import HeldOutSampler, batch_of

_RECORDINGS = 4
#: Of a recording: four of them leave room in an event.
_MOST_SOUND = MOST_BYTES // _RECORDINGS - 1024


class TranscriptSampler(HeldOutSampler):
    """Plays recordings: each with its transcript and what the model writes by itself."""

    about = "Held-out recordings with their transcripts; what the model hears comes after the arrow."
    count = _RECORDINGS

    def __init__(self, model: Transcribes, source: SpeechSource, environment: Environment) -> None:
        super().__init__(source, environment)
        # Named again, for what it can more than other sources.
        self._speech = source
        most = source.config.sequence_length

        def transcribe(params: Any, state: Any, audio: Any, lengths: Any) -> Any:
            return kn.functional(model, "transcribe")(params, state, audio, lengths, most)[0]

        self._transcribe = jax.jit(transcribe)

    def shown(self, rows: list[dict[str, np.ndarray]], params: Any, state: Any) -> list[Medium]:
        """Returns the recordings with both texts."""
        batch = batch_of(self._source, rows)
        with self._environment.active():
            heard = np.asarray(self._transcribe(params, state, batch.audio, batch.audio_lengths).ids)
        made = []
        for row, ids in zip(rows, heard, strict=True):
            said = self._speech.text_of(row["target_ids"][row["loss_weights"] > 0])
            samples = np.asarray(row["audio"])[: int(row["audio_lengths"])]
            samples, rate = lowered(samples, self._speech.config.sample_rate)
            made.append(wav(samples, rate, f"{said} → {self._speech.text_of(ids)}"))
        return made


def lowered(samples: np.ndarray, rate: int) -> tuple[np.ndarray, int]:
    """Returns sound at a rate lower by a whole factor, so that its file fits beside others in an event."""
    factor = -(-2 * len(samples) // _MOST_SOUND)
    if factor <= 1:
        return samples, rate
    means = samples[: len(samples) // factor * factor].reshape(-1, factor).mean(axis=1)
    return means, rate // factor
