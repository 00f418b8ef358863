"""Conformance of an experiment: it composes, says the same each time, survives being written, and its step traces."""

from typing import Any, ClassVar

from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition, compose
from kanawa.config import Config, digest
from kanawa.testing.conformance import ConfiguredConformance


class ExperimentConformance(ConfiguredConformance):
    """Subclasses set the experiment's catalog name, and a target for it.

    `unsupported` may hold "trace", for a step that takes too long to trace in a test, with a reason.
    """

    name: ClassVar[str] = ""
    target: ClassVar[str] = "cpu"

    def composition(self) -> Composition:
        """Returns the experiment, composed for its target."""
        assert self.name, "set `name` in the conformance class"
        return compose(self.name, self.target)

    def config(self) -> Config:
        """Returns its resolved config."""
        return self.composition().config

    def programs(self) -> Any:
        """Returns the workload's programs by name, with abstract arguments."""
        composition = self.composition()
        return composition.workload().programs(environment(composition, "abstract"))

    def test_it_composes_to_the_same_each_time(self) -> None:
        assert digest(self.composition().config, "all") == digest(self.composition().config, "all")

    def test_it_has_a_step_to_train(self) -> None:
        programs = self.programs()
        assert "train_step" in programs, f"its programs are {', '.join(programs)}; `kanawa train` runs train_step"
        assert programs["train_step"].abstract_args

    def test_its_step_traces(self) -> None:
        self.skip_unless("trace")
        self.programs()["train_step"].trace()
