"""From sound to log-mel spectrograms, in the model: windows, their spectra, mel filters, a logarithm, a scale."""

import abc
from typing import Literal

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float, Int
from kanawa.errors import ModuleError


class SpectrumScale(kn.Module):
    """From energies of mel bands to features: a logarithm and a scale; a slot of `LogMel`."""

    class Config(kn.Module.Config):
        pass

    @abc.abstractmethod
    def forward(self, energies: Float[Array, "B T M"], num_frames: Int[Array, " B"]) -> Float[Array, "B T M"]:
        """Returns features of the same shape, fp32; those of frames past `num_frames` mean nothing."""


class BelowPeak(SpectrumScale):
    """(max(log10 e, peak - decades) + 4) / 4 with the peak of the whole row (Whisper, arXiv:2212.04356, code)."""

    class Config(SpectrumScale.Config):
        decades: kn.Positive = 8.0
        floor: kn.Positive = 1e-10

    def forward(self, energies: Float[Array, "B T M"], num_frames: Int[Array, " B"]) -> Float[Array, "B T M"]:
        """Returns the scaled logarithm; padding is silence, and can't be the peak."""
        del num_frames
        logs = jnp.log10(jnp.maximum(energies, self.config.floor))
        peak = jnp.max(logs, axis=(1, 2), keepdims=True)
        return (jnp.maximum(logs, peak - self.config.decades) + 4.0) / 4.0


class NormalisedBands(SpectrumScale):
    """ln(e + floor), each band with mean 0 and deviation 1 over the row's own frames; 0 past them (NeMo)."""

    class Config(SpectrumScale.Config):
        floor: kn.Positive = 2.0**-24
        eps: kn.Positive = 1e-5

    def forward(self, energies: Float[Array, "B T M"], num_frames: Int[Array, " B"]) -> Float[Array, "B T M"]:
        """Returns the normalised logarithm; the variance is the unbiased one."""
        real = (jnp.arange(energies.shape[1])[None] < num_frames[:, None])[..., None].astype(jnp.float32)
        count = num_frames[:, None, None].astype(jnp.float32)
        logs = jnp.log(energies + self.config.floor)
        mean = jnp.sum(logs * real, axis=1, keepdims=True) / jnp.maximum(count, 1.0)
        centred = (logs - mean) * real
        variance = jnp.sum(centred * centred, axis=1, keepdims=True) / jnp.maximum(count - 1.0, 1.0)
        normalised: jax.Array = centred / (jnp.sqrt(variance) + self.config.eps)
        return normalised


class LogMel(kn.Module):
    """Samples [B, N] at `sample_rate` Hz to features [B, N // hop, num_mels], fp32 whatever the compute dtype is.

    Frame t is centred on sample t * hop; the ends are mirrored, or followed by zeros. The defaults are Whisper's. A
    `window` shorter than `fft_size` is centred in it; `periodic` says where the Hann window would continue.
    `preemphasis` p makes x[n] - p x[n - 1] of the samples. The mel scale is Slaney's (linear below 1,000 Hz) or
    HTK's; `area` divides each triangle by its width in Hz, halved (Slaney 1998).
    """

    scale: SpectrumScale

    class Config(kn.Module.Config):
        sample_rate: kn.Size = 16_000
        num_mels: kn.Size = 80
        window: kn.Size = 400
        hop: kn.Size = 160
        fft_size: kn.Size = 400
        periodic: bool = True
        edges: Literal["mirrored", "zeros"] = "mirrored"
        preemphasis: kn.Partial = 0.0
        mel_scale: Literal["slaney", "htk"] = "slaney"
        area: bool = True
        lowest: kn.NonNegative = 0.0
        highest: kn.Positive | None = None
        scale: SpectrumScale.Config = BelowPeak.Config()

        def check(self) -> list[str]:
            """Returns what is wrong with the window and the frequencies."""
            problems, top = [], self.highest or self.sample_rate / 2
            if self.window > self.fft_size:
                problems.append(f"window ({self.window}) is longer than fft_size ({self.fft_size})")
            if not self.lowest < top <= self.sample_rate / 2:
                problems.append(
                    f"bands from {self.lowest:g} to {top:g} Hz; expected rising, up to {self.sample_rate / 2:g} Hz, "
                    "half of the sample rate"
                )
            return problems

    def setup(self) -> None:
        """Makes the window and the filters, which are constants."""
        cfg = self.config
        self.add_child("scale", cfg.scale)
        turns = np.arange(cfg.window) / (cfg.window if cfg.periodic else cfg.window - 1)
        before = (cfg.fft_size - cfg.window) // 2
        hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * turns)
        self.hann = np.pad(hann, (before, cfg.fft_size - cfg.window - before)).astype(np.float32)
        self.filters = mel_filters(cfg).astype(np.float32)

    def forward(
        self, samples: Float[Array, "B N"], num_samples: Int[Array, " B"] | None = None
    ) -> tuple[Float[Array, "B T M"], Int[Array, " B"]]:
        """Returns features and how many frames are each row's own; raises ModuleError for rows shorter than a window.

        Samples past `num_samples` (None: all are the row's) count as silence.
        """
        cfg, (rows, length) = self.config, samples.shape
        if length <= cfg.fft_size // 2:
            message = f"{self.path}: rows of {length} samples are shorter than half a window of {cfg.fft_size}"
            raise ModuleError(message)
        counts = jnp.full((rows,), length, jnp.int32) if num_samples is None else num_samples
        x = samples.astype(jnp.float32)
        if cfg.preemphasis:
            x = jnp.concatenate([x[:, :1], x[:, 1:] - cfg.preemphasis * x[:, :-1]], axis=1)
        x = jnp.where(jnp.arange(length)[None] < counts[:, None], x, 0.0)
        mode = "reflect" if cfg.edges == "mirrored" else "constant"
        half = cfg.fft_size // 2
        x = jnp.pad(x, ((0, 0), (half, half)), mode=mode)
        frames = np.arange(length // cfg.hop)[:, None] * cfg.hop + np.arange(cfg.fft_size)[None]
        spectra = jnp.fft.rfft(x[:, frames] * self.hann[None, None], axis=-1)
        power = jnp.square(spectra.real) + jnp.square(spectra.imag)
        # Products of energies that differ by ten decades: a bfloat16 pass would lose the quiet bands.
        energies = jnp.matmul(power, self.filters, precision=jax.lax.Precision.HIGHEST)
        num_frames = counts // cfg.hop
        return self.scale(energies, num_frames), num_frames


def mel_filters(cfg: LogMel.Config) -> np.ndarray:
    """Returns the weights [frequencies, mels] of triangles whose corners are equally far apart on the mel scale."""
    to_mel, to_hertz = (_slaney_mel, _slaney_hertz) if cfg.mel_scale == "slaney" else (_htk_mel, _htk_hertz)
    highest = cfg.highest or cfg.sample_rate / 2
    ends = to_mel(np.array([cfg.lowest, highest]))
    corners = to_hertz(np.linspace(ends[0], ends[1], cfg.num_mels + 2))
    frequencies = np.linspace(0.0, cfg.sample_rate / 2, cfg.fft_size // 2 + 1)
    widths = np.diff(corners)
    slopes = corners[None] - frequencies[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling))
    return filters * (2.0 / (corners[2:] - corners[:-2])) if cfg.area else filters


#: Slaney's scale: 3 mels every 200 Hz up to 1,000 Hz, and above it 27 mels for each factor of 6.4.
_LINEAR, _KNEE, _STEP = 3.0 / 200.0, 1000.0, 27.0 / np.log(6.4)


def _slaney_mel(hertz: np.ndarray) -> np.ndarray:
    above = _LINEAR * _KNEE + _STEP * np.log(np.maximum(hertz, _KNEE) / _KNEE)
    return np.where(hertz < _KNEE, _LINEAR * hertz, above)


def _slaney_hertz(mels: np.ndarray) -> np.ndarray:
    above = _KNEE * np.exp((np.maximum(mels, _LINEAR * _KNEE) - _LINEAR * _KNEE) / _STEP)
    return np.where(mels < _LINEAR * _KNEE, mels / _LINEAR, above)


def _htk_mel(hertz: np.ndarray) -> np.ndarray:
    return 2595.0 * np.log10(1.0 + hertz / 700.0)


def _htk_hertz(mels: np.ndarray) -> np.ndarray:
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
