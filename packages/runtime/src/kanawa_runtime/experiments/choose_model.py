"""`model`: another model for any experiment, by catalog name; data and learner stay."""

import kanawa as kn
from kanawa.contracts import Model
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_runtime.data.random_tokens import RandomTokens


class ChooseModel(kn.Modifier):
    """Puts a catalogued model in the place of the experiment's: `--modify model:name=gemma3-1b`.

    Data and learner stay as they are. Text keeps its tokenizer, whose ids the new model must have room for; random
    tokens are drawn from the new model's vocabulary.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `model` replaced whole; raises ConfigError where there is none, or the name is none."""
        if "model" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no model to replace; it is no experiment"
            raise ConfigError(message)
        model = component("models", self.config.name)()
        if not isinstance(model, Model.Config):
            message = f"model {self.config.name!r} gave {type(model).__name__}, expected a config of a Model"
            raise ConfigError(message)
        cfg.set(model=model)
        if "data" in cfg.fields() and isinstance(cfg.data, RandomTokens.Config):
            cfg.data.set(vocab_size=model.vocab_size)
        return cfg
