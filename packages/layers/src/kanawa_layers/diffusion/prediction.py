"""What a network predicts of a noised picture, and how the picture and the noise follow from it.

A noised picture is x = signal * picture + noise_level * noise.
"""

import abc

import kanawa as kn
from jaxtyping import Array, Float

#: A number for each row, in the shape that broadcasts to pictures, or one for all.
Level = Float[Array, "*rows"] | float


class Prediction(kn.Module):
    """What the network's output means; a slot of objectives, without parameters."""

    @kn.nowrap
    @abc.abstractmethod
    def target(
        self, picture: Float[Array, "B H W C"], noise: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns what the network is to output."""

    @kn.nowrap
    @abc.abstractmethod
    def picture(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the picture that an output stands for, at the noised picture `x`."""

    @kn.nowrap
    @abc.abstractmethod
    def noise(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the noise that an output stands for."""


class NoisePrediction(Prediction):
    """The noise: epsilon of DDPM (Ho et al. 2020, arXiv:2006.11239, equation 14)."""

    @kn.nowrap
    def target(
        self, picture: Float[Array, "B H W C"], noise: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the noise."""
        del picture, signal, level
        return noise

    @kn.nowrap
    def picture(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns what is left without the noise."""
        return (x - level * output) / signal

    @kn.nowrap
    def noise(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the output."""
        del x, signal, level
        return output


class PicturePrediction(Prediction):
    """The picture: x0."""

    @kn.nowrap
    def target(
        self, picture: Float[Array, "B H W C"], noise: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the picture."""
        del noise, signal, level
        return picture

    @kn.nowrap
    def picture(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the output."""
        del x, signal, level
        return output

    @kn.nowrap
    def noise(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns what is left without the picture."""
        return (x - signal * output) / level


class VelocityPrediction(Prediction):
    """v = signal * noise - level * picture (Salimans and Ho 2022, arXiv:2202.00512); signal^2 + level^2 is 1."""

    @kn.nowrap
    def target(
        self, picture: Float[Array, "B H W C"], noise: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the velocity."""
        return signal * noise - level * picture

    @kn.nowrap
    def picture(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the picture, by turning back."""
        return signal * x - level * output

    @kn.nowrap
    def noise(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the noise, a quarter turn from the picture."""
        return signal * output + level * x


class FlowPrediction(Prediction):
    """noise - picture, the speed along the straight line between them (arXiv:2209.03003); signal + level is 1."""

    @kn.nowrap
    def target(
        self, picture: Float[Array, "B H W C"], noise: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the speed."""
        del signal, level
        return noise - picture

    @kn.nowrap
    def picture(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the end of the line without noise."""
        del signal
        return x - level * output

    @kn.nowrap
    def noise(
        self, output: Float[Array, "B H W C"], x: Float[Array, "B H W C"], signal: Level, level: Level
    ) -> Float[Array, "B H W C"]:
        """Returns the end of the line without a picture."""
        del level
        return x + signal * output
