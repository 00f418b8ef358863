"""`classify`: an experiment learns labels of texts, or of their tokens."""

from typing import Any, Literal

import kanawa as kn
from kanawa.contracts import RepresentsText
from kanawa.errors import ConfigError

from kanawa_runtime.data.labelled import LabelledTexts, rows_of_records
from kanawa_runtime.train.init_from import new_parts


class Classify(kn.Modifier):
    """Text classification: `kanawa train FOLDER --modify classify:labels=[bad,good] --data labelled.jsonl`.

    Records have `text` and `label`, or with `of_tokens` `tokens` and `labels`, lists; other names of columns are fields
    of `data`. The model gets a head of labels (see `label-head`), which begins anew; all else is what the folder holds.
    """

    class Config(kn.Modifier.Config):
        labels: tuple[str, ...] = kn.REQUIRED
        of_tokens: bool = False
        on_long: Literal["cut", "skip", "stop"] = "cut"
        on_bad: Literal["stop", "skip"] = "stop"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows of labels and a head for them; raises ConfigError where its data aren't records."""
        own: Any = self.config
        if "data" not in cfg.fields() or "model" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no data and model to learn labels with: it is no experiment"
            raise ConfigError(message)
        before = cfg.model.clone()
        # By its name in the catalog: this package never imports the one that brings heads.
        head = kn.component("modifiers", "label-head", asker="kanawa-runtime").Config()
        changed: Any = head.set(labels=own.labels, of_tokens=own.of_tokens).build()(cfg)
        kind: Any = changed.model._target
        labels = kind.labels_of(changed.model) if issubclass(kind, RepresentsText) else None
        assert labels is not None
        rows = rows_of_records(cfg.data, LabelledTexts, "labels")
        rows.set(labels=own.labels, place=labels.place, on_long=own.on_long, on_bad=own.on_bad)
        made: kn.Config = changed.set(data=rows, init_from=new_parts(before, changed.model))
        return made
