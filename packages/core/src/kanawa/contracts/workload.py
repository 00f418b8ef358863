"""A workload: what an experiment builds. `plan` compiles its programs, `train` runs them."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from kanawa.arrays.optimizer_state import MEMORIES
from kanawa.arrays.precision import Precision
from kanawa.config import REQUIRED, Config, Configurable, FloatDtype
from kanawa.contracts.device_mesh import DeviceMesh
from kanawa.contracts.program import Environment, Program
from kanawa.contracts.roles import Model
from kanawa.contracts.strategy import Strategy


class PrecisionConfig(Config):
    """dtype names of `compute` and `accumulate`; parameters are always stored in their ParamSpec's dtype."""

    compute: FloatDtype = "float32"
    accumulate: FloatDtype = "float32"

    def precision(self) -> Precision:
        """Returns the hashable policy."""
        return Precision(self.compute, self.accumulate)


class ExecutionConfig(Config):
    """Where and how a workload runs. All of it may change between runs of one experiment.

    `mesh` None and no strategies mean one device. `kernels` pins operations to kernels by catalog name.
    `tuning` is the table of measured kernels that is used: "auto" (this user's, but none where several processes run
    one program), "none", or a file.
    `optimizer_memory` "pinned_host" keeps optimizer state in host memory between steps; it needs a mesh.
    """

    #: What compilers need of a program, their backends say now (kanawa_program_traits).
    REMOVED = ("materialize", "native_products", "onednn", "unroll_layers")

    mesh: DeviceMesh.Config | None = None
    strategies: tuple[Strategy.Config, ...] = ()
    kernels: dict[str, str] = {}
    require_fused: bool = False
    tuning: str = "auto"
    compiler_options: dict[str, str | int | float | bool] = {}
    optimizer_memory: str = "device"

    @classmethod
    def upgrade(cls, written: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of an older version as they are named now: without native matmuls, XLA's are pinned."""
        upgraded = super().upgrade(written)
        if False in (written.get("native_products"), written.get("onednn")):
            upgraded["kernels"] = {"matmul": "matmul.any.xla", **written.get("kernels", {})}
        return upgraded

    def check(self) -> list[str]:
        """Returns what is wrong with the memory's name."""
        if self.optimizer_memory in MEMORIES:
            return []
        return [f"optimizer_memory is {self.optimizer_memory!r}, expected one of {', '.join(MEMORIES)}"]


class BatchShape(NamedTuple):
    """Rows of a training batch and positions of a row, and the config paths of the fields that set them.

    A row that isn't of tokens counts as one position.
    """

    rows: int
    length: int
    rows_path: str = "batch_size"
    length_path: str = "data.sequence_length"


@dataclasses.dataclass(frozen=True)
class RolloutShape:
    """What a step that learns from its own rollouts does besides training: for every `updates` updates, one batch.

    `rows` completions of at most `new_tokens` after prompts of at most `prompt_tokens`, at most `concurrent` at a time
    (None: all), and `scorings` forward passes over the batch before it is trained on.
    """

    rows: int
    prompt_tokens: int
    new_tokens: int
    updates: int = 1
    scorings: int = 0
    concurrent: int | None = None
    #: Drawn while the batch before is trained on.
    overlaps: bool = False


class Workload(Configurable):
    """Programs over one model, described without opening data or touching a device."""

    class Config(Configurable.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = ("execution",)

        model: Model.Config = REQUIRED
        precision: PrecisionConfig = PrecisionConfig()
        execution: ExecutionConfig = ExecutionConfig()

        def batch_shape(self) -> BatchShape | None:
            """Returns the shape of a training batch; None where batches have no rows."""
            return None

        def rollout_shape(self) -> RolloutShape | None:
            """Returns what a step draws from the model before it trains on it; None where batches are data."""
            return None

    def __init__(self, cfg: Any, *, model: Model | None = None) -> None:
        """Builds `cfg.model`, unless it is handed over because a composition built and checked it already."""
        super().__init__(cfg)
        self.model: Model = cfg.model.build() if model is None else model

    @abc.abstractmethod
    def programs(self, environment: Environment) -> Mapping[str, Program]:
        """Returns the programs by name, such as "train_step"; their arguments are abstract."""
