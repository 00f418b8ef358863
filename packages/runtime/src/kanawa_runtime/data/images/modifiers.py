"""`flip`, `random-crop`, `color-jitter`: pictures changed at random while training, for any experiment on pictures."""

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.data.images.augment import Augmentation, ColorJitter, Flip, RandomCrop
from kanawa_runtime.data.images.pictures import Pictures


def augmented(cfg: kn.Config, new: Augmentation.Config) -> kn.Config:
    """Returns an experiment with one more augmentation of its pictures, in the place of one of the same kind."""
    sources = [node for _, node in cfg.walk() if isinstance(node, Pictures.Config)]
    if not sources:
        message = f"{type(cfg).__qualname__} has no data of pictures to change; name some with --data FOLDER"
        raise ConfigError(message)
    for source in sources:
        own = source.augmentations
        if any(type(one) is type(new) for one in own):
            source.set(augmentations=tuple(new.clone() if type(one) is type(new) else one for one in own))
        else:
            source.set(augmentations=(*own, new.clone()))
    return cfg


class AddFlip(kn.Modifier):
    """Mirrors half of the training pictures: `--modify flip`."""

    class Config(kn.Modifier.Config):
        probability: kn.Partial = 0.5

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the augmentation."""
        return augmented(cfg, Flip.Config(probability=self.config.probability))


class AddRandomCrop(kn.Modifier):
    """Trains on random parts of the pictures: `--modify random-crop:scale=0.5`."""

    class Config(kn.Modifier.Config):
        scale: kn.Partial = 0.25
        stretch: kn.Positive = 4 / 3

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the augmentation."""
        return augmented(cfg, RandomCrop.Config(scale=self.config.scale, stretch=self.config.stretch))


class AddColorJitter(kn.Modifier):
    """Changes brightness, contrast and saturation of training pictures: `--modify color-jitter:brightness=0.2`."""

    class Config(kn.Modifier.Config):
        brightness: kn.Partial = 0.3
        contrast: kn.Partial = 0.3
        saturation: kn.Partial = 0.3

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the augmentation."""
        own = self.config
        new = ColorJitter.Config(brightness=own.brightness, contrast=own.contrast, saturation=own.saturation)
        return augmented(cfg, new)
