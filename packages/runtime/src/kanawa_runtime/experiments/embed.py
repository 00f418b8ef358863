"""`embed`: an experiment learns vectors of texts, near for those that belong together."""

from typing import Any, Literal

import kanawa as kn
from kanawa.errors import ConfigError

from kanawa_runtime.data.labelled import rows_of_records
from kanawa_runtime.data.preferences.embedding import EmbeddingPairs
from kanawa_runtime.train.init_from import new_parts


class Embed(kn.Modifier):
    """Text embeddings by contrast: `kanawa train FOLDER --modify embed --data pairs.jsonl`.

    Records have `query` and `positive`; other names of columns are fields of `data`. The other pairs of a batch are the
    negatives, so that larger batches teach more. An encoder loses its head; see `embedding-loss`.
    """

    class Config(kn.Modifier.Config):
        pooling: Literal["mean", "first", "last"] = "mean"
        scale: kn.Positive = 20.0
        on_bad: Literal["stop", "skip"] = "stop"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows of pairs and their loss; raises ConfigError where its data aren't records."""
        own: Any = self.config
        if "data" not in cfg.fields() or "model" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no data and model to learn embeddings with: it is no experiment"
            raise ConfigError(message)
        before = cfg.model.clone()
        # By its name in the catalog: this package never imports the one that brings losses.
        loss = kn.component("modifiers", "embedding-loss", asker="kanawa-runtime").Config()
        changed: Any = loss.set(pooling=own.pooling, scale=own.scale).build()(cfg)
        rows = rows_of_records(cfg.data, EmbeddingPairs, "pairs of texts").set(on_bad=own.on_bad)
        made: kn.Config = changed.set(data=rows, init_from=new_parts(before, changed.model))
        return made
