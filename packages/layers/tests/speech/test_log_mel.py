"""Spectrograms equal to those of transformers' feature extractors, on sound that fixtures/make_fixtures.py made."""

from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError, ModuleError
from kanawa_layers.speech.log_mel import LogMel, NormalisedBands, mel_filters

with np.load(Path(__file__).parent.parent / "fixtures" / "spectrograms" / "features.npz") as held:
    SAVED = dict(held)
NEMO = {"fft_size": 512, "periodic": False, "edges": "zeros", "preemphasis": 0.97, "scale": NormalisedBands.Config()}


def features(cfg):
    lengths = SAVED["lengths"]
    samples = np.where(np.arange(16_000)[None] < lengths[:, None], SAVED["samples"][None], np.float32(0))
    return jax.jit(lambda x, n: kn.functional(cfg.build())({}, {}, x, n)[0])(samples, lengths)


@pytest.mark.parametrize("mels", [80, 128])
def test_whispers(mels):
    actual, counts = features(LogMel.Config(num_mels=mels))
    np.testing.assert_allclose(np.swapaxes(actual, 1, 2), SAVED[f"whisper_{mels}"], atol=1e-4)
    np.testing.assert_array_equal(counts, [100, 56])


def test_nemos():
    actual, counts = features(LogMel.Config(**NEMO))
    wanted, mask = SAVED["nemo"], SAVED["nemo_mask"]
    np.testing.assert_array_equal(counts, mask.sum(1))
    # The last frame of theirs is no row's own.
    np.testing.assert_allclose(actual, wanted[:, : actual.shape[1]], atol=1e-4, rtol=1e-4)


def test_htks_filters():
    cfg = LogMel.Config(num_mels=40, mel_scale="htk", area=False, lowest=20.0, highest=7600.0)
    np.testing.assert_allclose(mel_filters(cfg), SAVED["htk"], atol=1e-5)


def test_samples_past_a_rows_end_are_silence():
    cfg = LogMel.Config()
    run = jax.jit(lambda x: kn.functional(cfg.build())({}, {}, x, np.array([700]))[0][0])
    noise = jax.random.normal(jax.random.key(0), (1, 1600))
    np.testing.assert_array_equal(run(noise), run(jnp.where(jnp.arange(1600)[None] < 700, noise, 0.0)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="up to 8000 Hz, half of the sample rate"):
        LogMel.Config(highest=9000.0).build()
    with pytest.raises(ConfigError, match=r"window \(600\) is longer than fft_size \(400\)"):
        LogMel.Config(window=600).build()
    with pytest.raises(ModuleError, match="rows of 200 samples are shorter"):
        kn.functional(LogMel.Config().build())({}, {}, jnp.zeros((1, 200)))
