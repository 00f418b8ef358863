"""A composition made ready to lower: what `plan` compiles for hardware that isn't here is what `train` runs."""

import dataclasses
from collections.abc import Mapping

from kanawa.composition.environment import Devices, environment
from kanawa.composition.experiment import Composition
from kanawa.contracts import Environment, Program, Workload
from kanawa.errors import UsageError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A composition, its workload built once, where its programs run, and the programs."""

    composition: Composition
    workload: Workload
    environment: Environment
    programs: Mapping[str, Program]

    def program(self, name: str) -> Program:
        """Returns the named program; raises UsageError with near names where the workload has none such."""
        if name not in self.programs:
            kind, names = type(self.workload).__name__, ", ".join(self.programs)
            message = f"{kind} has no program {name!r}{did_you_mean(name, self.programs)}; it has {names}"
            raise UsageError(message)
        return self.programs[name]

    def on(self, where: Environment) -> "Prepared":
        """Returns the same workload prepared for another environment, without building it again."""
        return dataclasses.replace(self, environment=where, programs=self.workload.programs(where))


def prepare(composition: Composition, devices: Devices = "process", where: Environment | None = None) -> Prepared:
    """Returns the composition ready to lower on `devices` (see `environment`), or in the environment `where`."""
    chosen = environment(composition, devices) if where is None else where
    workload = composition.workload()
    return Prepared(composition, workload, chosen, workload.programs(chosen))
