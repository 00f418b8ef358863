"""From something that isn't an experiment to one: a model, a folder of weights, a user's own data."""

import abc
from pathlib import Path

from kanawa.config import Config


class ExperimentTemplate(abc.ABC):
    """Supplies what a model lacks to be an experiment; catalogued as `kanawa.templates`, built without arguments.

    Composition asks every installed template in the order of their names and takes the first that doesn't refuse.
    """

    @abc.abstractmethod
    def refusal(self, model: Config) -> str:
        """Returns why this template has no data or learner for the model, and what to do instead; "" if it has."""

    @abc.abstractmethod
    def experiment(self, model: Config, platform: str | None = None, devices: int = 1) -> Config:
        """Returns an experiment around the model, whose batch can be split over `devices` devices of `platform`.

        `platform` is None without a target.
        """

    @abc.abstractmethod
    def from_folder(self, directory: Path, platform: str | None = None, devices: int = 1) -> Config | None:
        """Returns the experiment of a run, or one around the model of another folder; None for a folder of neither.

        Reads configs, never weights. The data's tokenizer is the folder's, where it has one.
        """

    @abc.abstractmethod
    def with_data(self, experiment: Config, data: str, source: Path | None = None) -> Config:
        """Returns the experiment on other data, read by the tokenizer of `source`, the folder its weights come from.

        `data` is a catalogued experiment (its data are taken) or data source, a glob of text files, a folder of
        them, or a file. Raises UsageError that says what it may be.
        """
