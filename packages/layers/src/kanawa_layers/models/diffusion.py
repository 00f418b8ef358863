"""Models that make pictures by diffusion: a network, what it learns, and how it is sampled."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Num
from kanawa.contracts import DataSource, ImageTextBatch, Made, MakesPictures

from kanawa_layers.basic.pixels import PixelNorm
from kanawa_layers.diffusion.denoiser import Autoencoder, Denoiser
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.objective import Objective
from kanawa_layers.diffusion.samplers.dpm_solver import DPMSolver
from kanawa_layers.diffusion.samplers.steps import SteppedSampler
from kanawa_layers.diffusion.text_encoder import TextEncoder
from kanawa_layers.models.pretrained_text import PretrainedText

#: What turns row numbers into quantiles that are spread evenly however many rows there are: the golden ratio's part.
_GOLDEN = 0.6180339887498949
#: Folded into a row's key, for draws after the first one, which is the pure noise that a picture begins with.
_STEPS = 1


class DiffusionModel(MakesPictures):
    """Learns what `objective` asks of noised pictures, by mean squares, and makes pictures with `sampler`.

    With an `encoder` it learns from pictures with texts, which are read once for all steps of a picture; without, a
    network of texts learns from what encoders made of them before. In training a wish is left out with probability
    `wish_dropout`, so that one model is both halves of guidance (Ho and Salimans 2022, arXiv:2207.12598). Times, noise
    and what is left out come of the step's key; evaluation has the same noise and evenly spread times each time, so
    that its losses compare. Rows of weight 0 count for nothing.
    """

    pixels: PixelNorm
    autoencoder: Autoencoder | None
    encoder: TextEncoder | None
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
        encoder: TextEncoder.Config | None = None
        denoiser: Denoiser.Config = kn.REQUIRED
        objective: Objective.Config = FlowMatching.Config()
        sampler: SteppedSampler.Config = DPMSolver.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"denoiser": "", "autoencoder": "vae", "encoder": "text_encoder"}
        )

        def check(self) -> list[str]:
            """Returns where sampler, names or encoder don't fit the rest."""
            kind: Any = self.sampler._target
            problem = kind.problem(self.sampler, self.objective)
            problems = [problem] if problem else []
            if self.class_names and len(self.class_names) != self.num_classes:
                problems.append(f"class_names has {len(self.class_names)} names for {self.num_classes} labels")
            if self.encoder is not None:
                problems += _encoder_problems(self)
            return problems

    @classmethod
    def batch_of(cls, cfg: "DiffusionModel.Config") -> type:
        """Returns pairs of pictures and texts where there is an encoder, else what the network learns from."""
        if cfg.encoder is not None:
            return ImageTextBatch
        kind: Any = cfg.denoiser._target
        record: type = kind.batch_of(cfg.denoiser)
        return record

    @classmethod
    def made_by(cls, cfg: "DiffusionModel.Config") -> Made:
        """Returns what the network makes, as pictures where there is an autoencoder, and of texts by an encoder."""
        made = _made_by_network(cfg)._replace(num_labels=cfg.num_classes, label_names=cfg.class_names)
        if cfg.encoder is not None:
            length, ids = cfg.encoder.length, cfg.encoder.vocab_size
            made = made._replace(prompt_length=length, vocab_size=ids, reads_states=False)
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

    @classmethod
    def data_problem(cls, cfg: "DiffusionModel.Config", source: DataSource) -> str:
        """Returns what is wrong with texts of more ids than the encoder has."""
        if cfg.encoder is None or source.vocab_size <= cfg.encoder.vocab_size:
            return ""
        found, known = source.vocab_size, cfg.encoder.vocab_size
        return (
            f"data has {found} token ids, but model.encoder.vocab_size is {known}; set data.tokenizer_file to its own"
        )

    def setup(self) -> None:
        """Declares the parts; what another model was trained with is frozen, unless it says that it is trained."""
        cfg = self.config
        for name in ("pixels", "objective", "sampler"):
            self.add_child(name, getattr(cfg, name))
        self.add_child("autoencoder", cfg.autoencoder, frozen=True)
        is_frozen = isinstance(cfg.encoder, PretrainedText.Config) and not cfg.encoder.trained
        self.add_child("encoder", cfg.encoder, frozen=is_frozen)
        self.add_child("denoiser", cfg.denoiser, num_labels=cfg.num_classes)

    @kn.nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns those of the network and of the encoder; an autoencoder's are left out."""
        del shapes
        texts = 0.0 if self.encoder is None else self.encoder.flops_per_text()
        return self.denoiser.flops_per_picture() + texts

    def predict(self, x: Float[Array, "B H W C"], times: Float[Array, " B"], wish: Any) -> Float[Array, "B H W D"]:
        """Returns the network's fp32 output."""
        return self.denoiser(x, times, wish).astype(jnp.float32)

    def forward(self, batch: Any) -> None:
        """Adds the mean over rows of the mean squared error over pixels."""
        pictures = self._clean(batch.images)
        if self.encoder is None:
            wish = self.denoiser.wish_of(batch)
        else:
            wish = self.encoder(jnp.where(batch.segment_ids > 0, batch.input_ids, -1))
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
        wish = wanted if self.encoder is None else self.encoder(wanted)
        keys = jax.vmap(lambda seed: jax.random.key(seed, impl="threefry2x32"))(seeds)

        def drawn(fold: Any) -> Float[Array, "B H W C"]:
            """Returns noise that is each row's own."""
            return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, fold), made.shape))(keys)

        def network(x: Float[Array, "B H W C"], time: Float[Array, ""]) -> Float[Array, "B H W C"]:
            times = jnp.broadcast_to(time, (x.shape[0],))
            if guidance is None:
                return self.predict(x, times, wish)[..., : made.shape[-1]]
            both = _joined(wish, self.denoiser.no_wish(wish))
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


def _encoder_problems(cfg: Any) -> list[str]:
    """Returns where the encoder's numbers aren't those that the network reads."""
    network, encoder = cfg.denoiser, cfg.encoder
    if network._target is None or encoder._target is None:
        return []
    read, made = network._target.text_widths(network), encoder._target.widths(encoder)
    if read is None:
        return [f"there is an encoder of texts, and {network._target.__qualname__} reads none"]
    problems = []
    if read.states != made.states:
        problems.append(f"encoder has {made.states} numbers a token, and denoiser.text_dim is {read.states}")
    if read.pooled is not None and read.pooled != made.pooled:
        problems.append(f"encoder has {made.pooled} numbers a text, and denoiser.pooled_dim is {read.pooled}")
    return problems


def _where(rows: Array, some: Any, others: Any) -> Any:
    """Returns `some` in these rows, and `others` in the rest."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b), some, others)


def _joined(first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
