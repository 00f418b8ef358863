"""Models that make pictures by diffusion: a network, what it learns, and how it is sampled."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Num
from kanawa.contracts import Made, MakesPictures

from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.diffusion.denoiser import Autoencoder, Denoiser
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.objective import Objective
from kanawa_layers.diffusion.samplers.dpm_solver import DPMSolver
from kanawa_layers.diffusion.samplers.steps import SteppedSampler

#: What turns row numbers into quantiles that are spread evenly however many rows there are: the golden ratio's part.
_GOLDEN = 0.6180339887498949
#: Folded into a row's key, for draws after the first one, which is the pure noise that a picture begins with.
_STEPS = 1


class DiffusionModel(MakesPictures):
    """Learns what `objective` asks of noised pictures, by mean squares, and makes pictures with `sampler`.

    In training a wish is left out with probability `wish_dropout`, so that one model is both halves of guidance (Ho and
    Salimans 2022, arXiv:2207.12598). Times, noise and what is left out come of the step's key; evaluation has the same
    noise and evenly spread times each time, so that its losses compare. Rows of weight 0 count for nothing.
    """

    pixels: PixelNorm
    autoencoder: Autoencoder | None
    denoiser: Denoiser
    objective: Objective
    sampler: SteppedSampler

    class Config(MakesPictures.Config):
        #: How many labels there are; 0 of a network that takes none, or texts.
        num_classes: kn.Count = 0
        #: What the labels are called, where that is known; `--data` sets both to those of the data.
        class_names: tuple[str, ...] = ()
        wish_dropout: kn.Partial = 0.1
        pixels: PixelNorm.Config = PixelNorm.Config()
        autoencoder: Autoencoder.Config | None = None
        denoiser: Denoiser.Config = kn.REQUIRED
        objective: Objective.Config = FlowMatching.Config()
        sampler: SteppedSampler.Config = DPMSolver.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(children={"denoiser": "", "autoencoder": "vae"})

        def check(self) -> list[str]:
            """Returns where the sampler doesn't fit what is learned, or names don't fit the labels."""
            kind: Any = self.sampler._target
            problem = kind.problem(self.sampler, self.objective)
            problems = [problem] if problem else []
            if self.class_names and len(self.class_names) != self.num_classes:
                problems.append(f"class_names has {len(self.class_names)} names for {self.num_classes} labels")
            return problems

    @classmethod
    def batch_of(cls, cfg: "DiffusionModel.Config") -> type:
        """Returns the record that the network learns from."""
        kind: Any = cfg.denoiser._target
        record: type = kind.batch_of(cfg.denoiser)
        return record

    @classmethod
    def made_by(cls, cfg: "DiffusionModel.Config") -> Made:
        """Returns what the network makes, as pictures where there is an autoencoder."""
        made = _made_by_network(cfg)._replace(num_labels=cfg.num_classes, label_names=cfg.class_names)
        if cfg.autoencoder is None:
            return made
        kind: Any = cfg.autoencoder._target
        shape = kind.picture_shape(cfg.autoencoder, made.shape)
        return made._replace(shape=shape, is_latent=False)

    @classmethod
    def row_shapes(cls, cfg: "DiffusionModel.Config") -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of the images, and of the texts where the network reads some."""
        made = cls.made_by(cfg)
        texts = {} if made.prompt_length is None else {"input_ids": (made.prompt_length,)}
        return {"images": made.shape, **texts}

    def setup(self) -> None:
        """Declares the parts."""
        cfg = self.config
        for name in ("pixels", "autoencoder", "objective", "sampler"):
            self.add_child(name, getattr(cfg, name))
        self.add_child("denoiser", cfg.denoiser, num_labels=cfg.num_classes)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the network."""
        del shapes
        return self.denoiser.flops_per_picture()

    def predict(self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: Any) -> Float[Array, "B H W D"]:
        """Returns the network's fp32 output."""
        return self.denoiser(x, times, wish).astype(jnp.float32)

    def forward(self, batch: Any) -> None:
        """Adds the mean over rows of the mean squared error over pixels."""
        pictures, wish = self._clean(batch.images), self.denoiser.wish_of(batch)
        rows = pictures.shape[0]
        if self.train:
            times_key, noise_key, wish_key = jax.random.split(self.next_key(), 3)
            quantiles = jax.random.uniform(times_key, (rows,))
            left_out = jax.random.bernoulli(wish_key, self.config.wish_dropout, (rows,))
            wish = _where(left_out, self.denoiser.no_wish(wish), wish)
        else:
            noise_key = jax.random.key(0, impl="threefry2x32")
            quantiles = jnp.mod((jnp.arange(rows, dtype=jnp.float32) + 0.5) * _GOLDEN, 1.0)
        noise = jax.random.normal(noise_key, pictures.shape, jnp.float32)
        at = self.objective.noising(quantiles)
        # Videos have one axis more than pictures.
        signal, level = (part.reshape(-1, *(1,) * (pictures.ndim - 1)) for part in at.of_pictures())
        output = self.predict(signal * pictures + level * noise, at.times, wish)
        target = self.objective.prediction.target(pictures, noise, signal, level)
        squares = jnp.mean((output[..., : target.shape[-1]] - target) ** 2, axis=tuple(range(1, target.ndim)))
        weights = batch.loss_weights
        self.add_loss("mean_squares", jnp.sum(squares * weights), jnp.sum(weights), primary=True)

    def make_pictures(
        self, wanted: Any, seeds: Num[Array, " B"], guidance: Float[Array, " B"] | None = None
    ) -> Num[Array, "B H W C"]:
        """Returns pixels, or fp32 latents where there is nothing to decode them with."""
        cfg = self.config
        made = _made_by_network(cfg)
        keys = jax.vmap(lambda seed: jax.random.key(seed, impl="threefry2x32"))(seeds)

        def drawn(fold: Any) -> Float[Array, "B H W C"]:
            """Returns noise that is each row's own."""
            return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, fold), made.shape))(keys)

        def network(x: Float[Array, "B H W C"], time: Float[Array, ""]) -> Float[Array, "B H W C"]:
            times = jnp.broadcast_to(time, (x.shape[0],))
            if guidance is None:
                return self.predict(x, times, wanted)[..., : made.shape[-1]]
            both = _joined(wanted, self.denoiser.no_wish(wanted))
            output = self.predict(jnp.concatenate([x, x]), jnp.concatenate([times, times]), both)
            of_wish, of_nothing = jnp.split(output[..., : made.shape[-1]], 2)
            return of_nothing + guidance.reshape(-1, *(1,) * (of_wish.ndim - 1)) * (of_wish - of_nothing)

        images = self.sampler(network, drawn(0), self.objective, lambda step: drawn(_STEPS + step))
        if self.autoencoder is not None:
            images = self.autoencoder.decode(images)
        return images if self.made_by(cfg).is_latent else self.pixels.restore(images)

    def _clean(self, images: Num[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        """Returns fp32 pictures or latents; floats are either already."""
        normed = self.pixels(images)
        if self.autoencoder is not None and normed.shape[1:] == self.made_by(self.config).shape:
            normed = jax.lax.stop_gradient(self.autoencoder.encode(normed))
        return normed.astype(jnp.float32)


def _made_by_network(cfg: DiffusionModel.Config) -> Made:
    """Returns what the network alone makes."""
    kind: Any = cfg.denoiser._target
    made: Made = kind.made_by(cfg.denoiser)
    return made


def _where(rows: Array, some: Any, others: Any) -> Any:
    """Returns `some` in these rows, and `others` in the rest."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b), some, others)


def _joined(first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
