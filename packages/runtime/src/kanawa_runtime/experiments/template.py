"""The experiment around a model that came without one: data it can learn from, a learner, sizes that fit."""

from pathlib import Path
from typing import Any, NamedTuple, cast

from kanawa.config import Config
from kanawa.contracts import DataSource, ExperimentTemplate, Model, PrecisionConfig
from kanawa.errors import UsageError
from kanawa.module import count_parameters

from kanawa_runtime.data.other_data import check_read_by_its_own, default_data, on_other_data
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import WarmupCosine
from kanawa_runtime.runs.imported import row_length
from kanawa_runtime.train.policies import CheckpointPolicy, EvaluationPolicy
from kanawa_runtime.train.trainer import Trainer

#: Enough to see a loss fall, and to measure speed.
STEPS = 1000
#: Rows a device: mesh rules of chips with little memory cut a batch into four before they spread it.
_ROWS_PER_DEVICE, _FEWEST_ROWS = 4, 8
#: Trained weights move this much less than new ones.
_FINE_TUNING = 0.1


class _Rate(NamedTuple):
    """Models of at most `parameters` learn at the rate `peak`: larger ones diverge there."""

    parameters: float
    peak: float


#: Roughly the published rates of GPT-3 (arXiv:2005.14165, table 2.1) and Llama 2, at their own batches.
_RATES = (_Rate(5e7, 2e-3), _Rate(5e8, 6e-4), _Rate(2e10, 3e-4), _Rate(float("inf"), 1.5e-4))


class LanguageModelTemplate(ExperimentTemplate):
    """Language models on real text: Python's own library, until someone gives their own with `--data`.

    Models that learn from other records need a source of those, by `--data` too.

    A causal model predicts the next token, a masked one what is hidden. The vocabulary is learned from the text and
    never larger than the model's. Lengths and rows suit the target: a processor gets short rows, an accelerator four
    rows a device, so that every mesh that uses all devices can split the batch.
    """

    def refusal(self, model: Config) -> str:
        """Returns why it is no model; "" if it is one."""
        kind = model._target
        if kind is not None and issubclass(kind, Model):
            return ""
        return f"{type(model).__qualname__} is no config of a kanawa.contracts.Model"

    def experiment(self, model: Config, platform: str | None = None, devices: int = 1) -> Trainer.Config:
        """Returns pretraining of the model from its initial weights; see the class for what is chosen how."""
        on_cpu = platform in (None, "cpu")
        module = model.build()
        count = count_parameters(module).total
        length = row_length(module, platform)
        peak = next(rate.peak for rate in _RATES if count <= rate.parameters)
        # Other records than rows of tokens are for the user to name.
        rows = default_data(model, length)
        data: dict[str, Any] = {} if rows is None else {"data": rows}
        return Trainer.Config(
            **data,
            model=cast(Model.Config, model),
            batch_size=max(_ROWS_PER_DEVICE * devices, _FEWEST_ROWS),
            steps=STEPS,
            precision=PrecisionConfig(compute="float32" if on_cpu else "bfloat16"),
            learner=Learner.Config(schedule=WarmupCosine.Config(peak=peak, warmup_fraction=0.05)),
            evaluation=EvaluationPolicy(every_steps=100, max_batches=8, final_batches=64),
            checkpoints=CheckpointPolicy(every_steps=100),
        )

    def from_folder(self, directory: Path, platform: str | None = None, devices: int = 1) -> Config | None:
        """Returns a run's own experiment, to be placed anew; fine-tuning of the model of any other known folder."""
        from kanawa_runtime.experiments.folders import own_experiment
        from kanawa_runtime.runs.imported import outline_of
        from kanawa_runtime.runs.tokenizer_file import tokenizer_file

        trained = own_experiment(directory)
        if trained is not None:
            return trained
        stored = outline_of(directory)
        if stored is None:
            return None
        refusal = self.refusal(stored.config)
        if refusal:
            message = f"{directory} holds a model that can't be trained as it is: {refusal}"
            raise UsageError(message)
        cfg = self.experiment(stored.config, platform, devices)
        cfg.learner.schedule.set(peak=cfg.learner.schedule.peak * _FINE_TUNING)
        file = tokenizer_file(directory)
        # A model of other records has no data before `--data` names some, which are read by its tokenizer too.
        if file is not None and isinstance(vars(cfg).get("data"), DataSource.Config):
            cfg.data.set_tokenizer_file(str(file.resolve()))
        return cfg

    def with_data(self, experiment: Config, data: str, source: Path | None = None) -> Config:
        """Returns the experiment on other data, read by the tokenizer of `source` where that folder has one."""
        from kanawa_runtime.runs.tokenizer_file import tokenizer_file

        cfg = on_other_data(experiment, data, None if source is None else tokenizer_file(source))
        if source is not None:
            check_read_by_its_own(cfg.data, source)
        return cfg
