"""`model`: another model for any experiment, by catalog name; data and learner stay."""

from typing import Any

import kanawa as kn
from kanawa.contracts import CausalLM, DataSource, MaskedLM, Model
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens


class ChooseModel(kn.Modifier):
    """Puts a catalogued model in the place of the experiment's: `--modify model:name=gemma3-1b`.

    Data and learner stay. Text keeps its tokenizer, whose ids the new model must have room for; random tokens are
    drawn from the new model's vocabulary. A model that sees both sides gets the same rows with tokens hidden, one that
    sees what came before gets them whole.
    """

    before_data = True

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
        kind: Any = model._target
        if "data" in cfg.fields() and issubclass(kind, CausalLM | MaskedLM):
            cfg.set(data=_rows_for(model, cfg.data))
        return cfg


def _rows_for(model: Any, data: DataSource.Config) -> DataSource.Config:
    """Returns the same rows as the model is to see them."""
    masked = issubclass(model._target, MaskedLM)
    rows = data.source if isinstance(data, MaskedTokens.Config) else data
    if isinstance(rows, RandomTokens.Config):
        rows = rows.clone().set(vocab_size=model.vocab_size - masked)
    rows = rows.clone().set(sequence_length=data.sequence_length)
    if masked == isinstance(data, MaskedTokens.Config):
        return data.clone().set(source=rows) if masked else rows
    return MaskedTokens.Config(sequence_length=data.sequence_length, source=rows) if masked else rows
