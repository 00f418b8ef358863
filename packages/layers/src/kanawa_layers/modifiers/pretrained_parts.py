"""Modifiers of diffusion models: what reads their texts, and what makes latents of pictures, from other models."""

from pathlib import Path
from typing import Any

import kanawa as kn
from kanawa.contracts import DataSource
from kanawa.errors import ConfigError
from kanawa.plugins import host

from kanawa_layers.models.autoencoder import VariationalAutoencoder
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.models.encoder_decoder import EncoderDecoderLM
from kanawa_layers.models.pretrained_text import EncoderText, PretrainedText, TowerText
from kanawa_layers.models.two_towers import TwoTowers

#: Files of tokenizers in a folder, or in what a run was imported from.
_TOKENIZERS = tuple(
    place + name for place in ("", "origin/") for name in ("tokenizer.json", "tokenizer.model", "spiece.model")
)
_LENGTH = 77


class TextEncoderModifier(kn.Modifier):
    """`text-encoder`: texts are read by another model's part, the text tower of CLIP or SigLIP, or T5's encoder.

    `folder` is a run, or one of another library; `tokenizer` a file or folder of its own, where it lies elsewhere.
    `length` is the ids that are read of a text: by default all that the tower has positions for, of T5 77. Frozen,
    unless `trained`.
    """

    before_data = True

    class Config(kn.Modifier.Config):
        folder: str = kn.REQUIRED
        tokenizer: str = ""
        length: kn.Size | None = None
        trained: bool = False
        hides_padding: bool = True

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the encoder and a network of its widths; raises ConfigError where either doesn't fit."""
        own, parts = self.config, vars(cfg)
        model, data = parts.get("model"), parts.get("data")
        network: Any = model.denoiser._target if isinstance(model, DiffusionModel.Config) else None
        if not isinstance(model, DiffusionModel.Config) or network is None:
            message = f"text-encoder: {type(cfg).__qualname__} has no diffusion model at `model`, but {named(model)}"
            raise ConfigError(message)
        if network.text_widths(model.denoiser) is None:
            message = f"text-encoder: {network.__qualname__} reads no texts; take a model that does, such as mmdit-tiny"
            raise ConfigError(message)
        encoder = _encoder(own).set(tokenizer=_tokenizer(own))
        kind: Any = encoder._target
        widths, denoiser = kind.widths(encoder), model.denoiser
        sizes = {"text_dim": widths.states, "pooled_dim": widths.pooled, "text_length": encoder.length}
        denoiser.set(**{name: size for name, size in sizes.items() if name in denoiser.fields()})
        model.set(encoder=encoder)
        if isinstance(data, DataSource.Config):
            data.set(sequence_length=encoder.length)
            data.set_tokenizer_file(encoder.tokenizer)
        return cfg


class AutoencoderModifier(kn.Modifier):
    """`autoencoder`: a diffusion model learns latents that the frozen autoencoder in `folder` makes of pictures."""

    before_data = True

    class Config(kn.Modifier.Config):
        folder: str = kn.REQUIRED

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the autoencoder; raises ConfigError where the folder holds none, or nothing wants one."""
        model, folder = vars(cfg).get("model"), self.config.folder
        if not isinstance(model, DiffusionModel.Config):
            message = f"autoencoder: {type(cfg).__qualname__} has no diffusion model at `model`, but {named(model)}"
            raise ConfigError(message)
        found, source = model_in(folder, "autoencoder")
        if not isinstance(found, VariationalAutoencoder.Config):
            message = (
                f"autoencoder: {folder} holds {type(found).__qualname__}, expected an autoencoder such as vae-tiny"
            )
            raise ConfigError(message)
        model.set(autoencoder=found.autoencoder.set(source=source))
        return cfg


def named(part: Any) -> str:
    """Returns what a message calls a part: its class, not all of its fields; a value that is none as it is."""
    return type(part).__qualname__ if isinstance(part, kn.Config) else repr(part)


def model_in(folder: str, modifier: str) -> tuple[Any, str]:
    """Returns the config of the model in a folder, and the folder's absolute path; raises ConfigError for none."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        message = f"{modifier}: {folder} is no folder; name a run's, or one of another library"
        raise ConfigError(message)
    stores = (kind() for _, kind in host().loaded("model_stores"))
    outline = next((store.outline(path) for store in stores if store.holds(path)), None)
    if outline is None:
        message = f"{modifier}: {folder} holds no model of a known kind"
        raise ConfigError(message)
    return outline.config.clone(), str(path.resolve())


def _encoder(own: TextEncoderModifier.Config) -> PretrainedText.Config:
    found, source = model_in(own.folder, "text-encoder")
    shared: dict[str, Any] = {"source": source, "trained": own.trained, "hides_padding": own.hides_padding}
    if isinstance(found, TwoTowers.Config):
        tower = found.text
        places = vars(tower.positions).get("max_length")
        if own.length is not None and places is not None and own.length > places:
            message = f"text-encoder: length is {own.length}, and the tower of {own.folder} has {places} positions"
            raise ConfigError(message)
        return TowerText.Config(
            length=own.length or places or _LENGTH, vocab_size=tower.vocab_size, output_dim=found.output_dim,
            pad_id=tower.end_id or 0, tower=tower, **shared,
        )  # fmt: skip
    if isinstance(found, EncoderDecoderLM.Config):
        return EncoderText.Config(
            length=own.length or _LENGTH, vocab_size=found.vocab_size, input_dim=found.input_dim,
            embedding=found.embedding, positions=found.positions, encoder=found.encoder, **shared,
        )  # fmt: skip
    message = (
        f"text-encoder: {own.folder} holds {type(found).__qualname__}, expected a model of pictures and texts such as "
        "CLIP, or an encoder-decoder such as T5"
    )
    raise ConfigError(message)


def _tokenizer(own: TextEncoderModifier.Config) -> str:
    """Returns the file or folder of the encoder's own tokenizer; raises ConfigError where there is none."""
    if own.tokenizer:
        return str(Path(own.tokenizer).expanduser().resolve())
    folder = Path(own.folder).expanduser().resolve()
    found = next((folder / name for name in _TOKENIZERS if (folder / name).exists()), None)
    if found is None:
        message = f"text-encoder: {own.folder} holds no tokenizer; name it with tokenizer=FILE"
        raise ConfigError(message)
    return str(found)
