"""Rows for masked diffusion: some of each text's tokens are hidden, and weighted so that the loss is a bound."""

import functools
import hashlib

import numpy as np

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.hiding import HidingRows
from kanawa_runtime.data.permutation import random_words

#: Fractional part of the golden ratio: its multiples spread evenly, however many rows are taken from where.
_GOLDEN = 0x9E3779B97F4A7C15


class MaskedDiffusionRows(HidingRows):
    """Rows of `source` for a denoiser: the tokens that it predicts, of which l of each segment's L are hidden.

    l is uniform on 1 to L, and each hidden token weighs L / l: with t = l / L that is the loss of absorbing diffusion
    with its weight 1 / t. Its mean bounds the negative log-likelihood per token from above (Nie et al. 2025,
    arXiv:2502.09992, equation 6), with less variance than independent masks at a drawn t, whose expectation is the
    same. Weights sum to L, so any mean over weights is the mean over tokens.

    `input_ids` are the source's `target_ids` with the hidden ones replaced by `mask_id`, by default one more than the
    source's largest id; `target_ids` are as in the source, at the same places. Tokens that the source gives no weight,
    such as prompts, are never hidden. Levels of consecutive rows are spread evenly, as in MDLM (arXiv:2406.07524).
    """

    class Config(HidingRows.Config):
        pass

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) over the source and what is made of it; of another kind than other rows of that source."""
        return hashlib.sha256(f"masked-diffusion {super().digest}".encode()).hexdigest()

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; the same tokens of it are hidden each time."""
        row = self._source.row(index)
        tokens, weights, segments = row["target_ids"], row["loss_weights"], row.get("segment_ids")
        # A text that held the mask's id would teach that it may be a token.
        predicted = weights > 0
        if np.any(tokens[predicted] == self.mask_id):
            message = f"row {index} holds the id {self.mask_id}, which stands for a hidden token; set data.mask_id"
            raise RowError(message)
        shown, weighed = tokens.copy(), np.zeros_like(weights)
        for number in np.unique(segments) if segments is not None else (1,):
            of_text = predicted if segments is None else predicted & (segments == number)
            places = np.flatnonzero(of_text)
            if places.size:
                hidden = self._hidden(places, index, int(number))
                shown[hidden] = self.mask_id
                weighed[hidden] = weights[hidden] * np.float32(places.size / hidden.size)
        return {**row, "input_ids": shown, "target_ids": tokens, "loss_weights": weighed}

    def _hidden(self, places: np.ndarray, index: int, number: int) -> np.ndarray:
        """Returns the places to hide, of those of one text."""
        seed, size = self.config.seed, places.size
        level = (int(random_words(1, seed, number, 1)[0]) + index * _GOLDEN) % 2**64
        count = 1 + (level * size >> 64)
        order = np.argsort(random_words(size, seed, index, number, 2), kind="stable")
        return np.sort(places[order[:count]])

    def target_bytes(self, target_ids: np.ndarray, loss_weights: np.ndarray) -> float | None:
        """Returns the bytes that all predicted tokens have if they are as long as the hidden ones, on average."""
        hidden = self._source.target_bytes(target_ids, loss_weights)
        count = np.count_nonzero(np.asarray(loss_weights) > 0)
        return hidden if not hidden else hidden * float(np.sum(loss_weights, dtype=np.float64)) / count
