"""What services ask of the training after an evaluation, agreed on by all processes of a gang."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

import jax

from kanawa_runtime.checkpoint.agreement import shared_text
from kanawa_runtime.learn.learner import RATE_FACTOR
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.run_directory import EVENTS, RunDirectory
from kanawa_runtime.services.host import ServiceHost
from kanawa_runtime.train.trainer import TrainState

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What all services ask together: one that stops is enough, one that saves too, factors multiply."""

    reasons: tuple[str, ...] = ()
    stop: bool = False
    save: bool = False
    rate: float = 1.0
    stop_reason: str = ""


class Steering:
    """Asks the services after each evaluation. `active` is the same in all processes: whether there is one to ask."""

    def __init__(self, run: RunDirectory, services: ServiceHost, *, active: bool) -> None:
        self._run, self._services, self._active = run, services, active
        self._evaluations: dict[int, Mapping[str, Any]] | None = None

    def decided(self, evaluation: Mapping[str, Any]) -> Decision:
        """Returns what is asked after an evaluation; every process of a gang calls."""
        if not self._active:
            return Decision()
        asked = json.dumps(dataclasses.asdict(self._asked(evaluation)))
        record = json.loads(shared_text(asked))
        return Decision(**{**record, "reasons": tuple(record["reasons"])})

    def without_evaluation(self) -> None:
        """Says once that there is nothing to steer by."""
        if self._active:
            self._active = False
            logger.warning(
                "services that steer by evaluations do nothing: the run's data holds nothing out to evaluate on"
            )

    def _asked(self, evaluation: Mapping[str, Any]) -> Decision:
        if not self._run.is_primary:
            return Decision()
        if self._evaluations is None:
            self._evaluations = _recorded(self._run)
        self._evaluations[int(evaluation["step"])] = evaluation
        asked = self._services.steer(self._run, [self._evaluations[step] for step in sorted(self._evaluations)])
        rate = 1.0
        for _, each in asked:
            rate *= each.rate
        return Decision(
            tuple(f"{name}: {each.reason}" for name, each in asked),
            any(each.stop for _, each in asked),
            any(each.save for _, each in asked),
            rate,
            "; ".join(f"{name}: {each.reason}" for name, each in asked if each.stop),
        )


def _recorded(run: RunDirectory) -> dict[int, Mapping[str, Any]]:
    """Returns the evaluations of earlier attempts by step, those of steps that are made again left out."""
    records = step_records(read_events(run.path / EVENTS), "eval")
    return {step: record for step, record in records.items() if step <= run.start_step}


def with_rate(state: TrainState, factor: float) -> TrainState | None:
    """Returns the state with its learning rate multiplied; None where the learner isn't `steerable`."""
    rate = state.opt.get(RATE_FACTOR)
    if rate is None:
        return None
    changed = jax.jit(lambda old: old * factor, out_shardings=rate.sharding)(rate)
    return state._replace(opt={**state.opt, RATE_FACTOR: changed})
