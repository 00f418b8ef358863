"""`dpo`, `simpo`, `orpo`, `kto`: an experiment learns preferences from records, by their losses."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import kanawa as kn
from kanawa.contracts.data import DataSource
from kanawa.errors import ConfigError

from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.packing import BestFitPacking
from kanawa_runtime.data.preferences.mixture import PairMixture
from kanawa_runtime.data.preferences.source import JudgedSource, PairedSource, PairSource
from kanawa_runtime.data.records.of_data import records_of


class Preferences(kn.Modifier):
    """Base: rows of pairs from the records of `--data`, and the loss of the modifier called `loss` in the catalog.

    Fields that the loss has are passed on to it; the others are those of the source.
    """

    class Config(kn.Modifier.Config):
        template: str | None = None
        on_long: Literal["skip", "stop"] = "skip"
        on_bad: Literal["stop", "skip"] = "stop"
        pairs_per_row: kn.Size = 16

    #: The modifier that sets the loss, and the source of its rows.
    loss: ClassVar[str]
    source: ClassVar[type[PairedSource]] = PairSource

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows of pairs and the loss; raises ConfigError where its data aren't records."""
        own = self.config
        if "data" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no data to learn from: it is no experiment"
            raise ConfigError(message)
        data, known = self._rows(cfg.data), self._is_precomputed
        # By its name in the catalog: this package never imports the one that brings losses.
        loss = kn.component("modifiers", self.loss, asker="kanawa-runtime").Config()
        passed = own.fields().keys() - Preferences.Config.fields().keys()
        loss.set(**{name: getattr(own, name) for name in passed})
        if known:
            loss.set(source="")
        changed: kn.Config = loss.build()(cfg.set(data=data))
        return changed

    @property
    def _is_precomputed(self) -> bool:
        return bool(vars(self.config).get("reference") == "precomputed")

    def _rows(self, data: Any) -> DataSource.Config:
        own = self.config
        if isinstance(data, Mixture.Config):
            fields = {name: getattr(data, name) for name in data.fields()}
            mixed = {name: self._rows(source) for name, source in data.sources.items()}
            return PairMixture.Config(**fields | {"sources": mixed})
        rows = rows_of_pairs(data, self.source)
        rows.set(on_long=own.on_long, on_bad=own.on_bad, pairs_per_row=own.pairs_per_row)
        known = self._is_precomputed
        rows.set(reference_columns=known, reference_source=own.source if known else "")
        if own.template is not None:
            rows.set(template_file=str(Path(own.template).resolve()))
        return rows


def rows_of_pairs(data: Any, kind: type[PairedSource]) -> PairedSource.Config:
    """Returns rows of pairs made of the records of `data`, in its sizes; raises ConfigError without records."""
    if isinstance(data, kind.Config):
        return data.clone()
    records = records_of(data)
    if records is None:
        found = type(data).__qualname__.removesuffix(".Config")
        message = f"preferences are read from records, and the data are {found}; name a file: --data pairs.jsonl"
        raise ConfigError(message)
    made = kind.Config(records=records)
    shared = made.fields().keys() & data.fields().keys() & _SIZES
    made.set(**{name: getattr(data, name) for name in shared})
    # Pairs must not be cut.
    return made if isinstance(made.packing, BestFitPacking.Config) else made.set(packing=BestFitPacking.Config())


#: What rows of pairs take over from the rows before.
_SIZES = frozenset(DataSource.Config.fields()) | {"tokenizer_file", "packing", "epochs", "shuffle", "window_documents"}

Reference = Literal["auto", "adapter-off", "frozen", "precomputed"]


class DPO(Preferences):
    """Direct preference optimisation: `kanawa train FOLDER --modify lora --modify dpo --data pairs.jsonl`.

    arXiv:2305.18290. The reference is the model without its adapters, else a frozen copy of it; `precomputed` reads its
    sums from the columns that `kanawa data reference` writes, or `ref_chosen_logps` and `ref_rejected_logps` of another
    tool, and `source` then is the run or folder that they have to be of. See `dpo-loss`, and under `model.loss` all
    that can be set.
    """

    loss = "dpo-loss"

    class Config(Preferences.Config):
        beta: kn.Positive = 0.1
        reference: Reference = "auto"
        source: str = ""
        label_smoothing: kn.Partial = 0.0


class KTO(Preferences):
    """Kahneman-Tversky optimisation of completions that are good or bad: records of `prompt, completion, label`.

    arXiv:2402.01306; see `kto-loss`, and `dpo` for the reference.
    """

    loss = "kto-loss"
    source = JudgedSource

    class Config(Preferences.Config):
        beta: kn.Positive = 0.1
        reference: Reference = "auto"
        source: str = ""
        good_weight: kn.Positive = 1.0
        bad_weight: kn.Positive = 1.0


class SimPO(Preferences):
    """Preferences by mean log-probabilities, without a reference (arXiv:2405.14734); see `simpo-loss`."""

    loss = "simpo-loss"

    class Config(Preferences.Config):
        beta: kn.Positive = 2.0
        target: kn.NonNegative = 1.0


class ORPO(Preferences):
    """Likelihood and odds ratio at once, without a reference (arXiv:2403.07691); see `orpo-loss`."""

    loss = "orpo-loss"

    class Config(Preferences.Config):
        beta: kn.Positive = 0.1
