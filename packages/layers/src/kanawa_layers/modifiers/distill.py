"""`distill`: the experiment's model becomes the student of a catalogued teacher."""

import kanawa as kn
from kanawa.contracts import CausalLM
from kanawa.errors import ConfigError
from kanawa.plugins import component

from kanawa_layers.tune.distill import Distilled


class DistillModifier(kn.Modifier):
    """Replaces `model` by a distilled one, whose `teacher` is a model of the catalog with the same vocabulary.

    The teacher is initialised at random like every parameter: load its weights with the run's initialisation.
    """

    class Config(kn.Modifier.Config):
        teacher: str = kn.REQUIRED
        coefficient: kn.NonNegative = 1.0
        temperature: kn.Positive = 1.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the model wrapped; raises ConfigError where there is no language model to wrap."""
        own, student = self.config, vars(cfg).get("model")
        if not isinstance(student, CausalLM.Config):
            message = f"distill: {type(cfg).__qualname__} has no causal language model at `model`, but {student!r}"
            raise ConfigError(message)
        teacher = component("models", own.teacher)()
        model = Distilled.Config(
            vocab_size=student.vocab_size,
            input_dim=student.input_dim,
            student=student,
            teacher=teacher,
            coefficient=own.coefficient,
            temperature=own.temperature,
        )
        return cfg.set(model=model)
