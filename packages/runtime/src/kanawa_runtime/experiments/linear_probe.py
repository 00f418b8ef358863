"""`linear-probe`: only a new head is trained, on top of what a model has learned before."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ParameterRule
from kanawa.errors import ConfigError

from kanawa_runtime.train.init_from import InitFrom


class LinearProbe(kn.Modifier):
    """Trains a new head alone: `kanawa train vit-tiny --init-from RUN --modify linear-probe --data pictures/`.

    All other parameters are the run's or folder's and stay what they are: the accuracy says what they tell of the
    classes (Alain and Bengio 2016, arXiv:1610.01644). The run's own head is left behind.
    """

    class Config(kn.Modifier.Config):
        pass

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with all but the head frozen; raises ConfigError where there is no head to train."""
        parts: Any = vars(cfg)
        model, learner = parts.get("model"), parts.get("learner")
        if model is None or learner is None or "rules" not in learner.fields() or vars(model).get("head") is None:
            what = type(cfg if model is None else model).__qualname__
            message = f"linear-probe: {what} has no head to train alone; take an experiment of a classifier"
            raise ConfigError(message)
        head = "head.**"
        learner.set(rules=(ParameterRule(where="**", frozen=True), ParameterRule(where=head)))
        cfg.set(init_from=InitFrom(fresh=(head,), unused=(head,)))
        return cfg
