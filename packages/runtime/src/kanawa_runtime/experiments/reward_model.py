"""`reward-model`: an experiment learns how good a completion is."""

from typing import Any

import kanawa as kn

from kanawa_runtime.data.preferences.modifiers import Preferences
from kanawa_runtime.train.init_from import new_parts


class RewardModel(Preferences):
    """Makes the model say how good a completion is: `kanawa train FOLDER --modify reward-model --data pairs.jsonl`.

    The head of one number begins anew, all else is what the folder or run holds; one of a reward model is taken whole.
    See `reward-loss`.
    """

    loss = "reward-loss"

    class Config(Preferences.Config):
        margin: kn.NonNegative = 0.0
        centre: kn.NonNegative = 0.0

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows of pairs, the head and its loss; raises ConfigError as `Preferences` does."""
        before = vars(cfg)["model"].clone() if "model" in cfg.fields() else None
        changed: Any = super().__call__(cfg)
        if before is not None and "init_from" in changed.fields():
            changed.set(init_from=new_parts(before, changed.model))
        made: kn.Config = changed
        return made
