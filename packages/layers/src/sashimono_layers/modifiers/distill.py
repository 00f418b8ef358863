"""`distill`: the experiment's model becomes the student of a catalogued teacher."""

import sashimono as sm
from sashimono.contracts import CausalLM
from sashimono.errors import ConfigError
from sashimono.plugins import component

from sashimono_layers.tune.distill import Distilled


class DistillModifier(sm.Modifier):
    """Replaces `model` by a distilled one, whose `teacher` is a model of the catalog with the same vocabulary.

    The teacher starts from its initialiser like every parameter: give its weights where the run is initialised.
    """

    class Config(sm.Modifier.Config):
        teacher: str = sm.REQUIRED
        coefficient: float = 1.0
        temperature: float = 1.0

    def __call__(self, cfg: sm.Config) -> sm.Config:
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
