"""Training from Python: what `kanawa train`, `eval` and `generate` do, for scripts and notebooks."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.composition.experiment import Composition, compose
from kanawa.config import Config
from kanawa.errors import UsageError

from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.run_directory import EVENTS
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import run_place, stands_for
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.outcome import Outcome
from kanawa_runtime.train.screen import Screen

if TYPE_CHECKING:
    from kanawa_runtime.runs.open_run import OpenedRun


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run after `train`, and what can be asked of it. Its directory is all it is: every command takes it too."""

    directory: Path | str
    outcome: Outcome

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every fact on record, in order, of all attempts."""
        return read_events(readable_folder(self.directory) / EVENTS)

    @property
    def losses(self) -> list[float]:
        """The loss before each update, from the first."""
        return [record["loss"] for _, record in sorted(step_records(self.events).items())]

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The last evaluation's record (`loss`, and `nats_per_byte` for text); None where nothing is held out."""
        evaluations = [event for event in self.events if event["event"] == "eval"]
        return evaluations[-1] if evaluations else None

    def open(self, step: int | None = None) -> "OpenedRun":
        """Returns the model with its parameters of the newest checkpoint, or of `step`."""
        from kanawa_runtime.runs.open_run import open_run

        return open_run(self.directory, step=step)

    def generate(self, prompt: str, max_tokens: int = 64, temperature: float = 0.8, seed: int = 0) -> str:
        """Returns what the model puts after the prompt; raises UsageError for a run whose data had no tokenizer."""
        from kanawa_runtime.data.tokenizers.of_run import no_tokenizer, tokenizer_of
        from kanawa_runtime.serve.continuation import continued
        from kanawa_runtime.serve.generate import Generator
        from kanawa_runtime.serve.healing import first_tokens, heal
        from kanawa_runtime.serve.sampling import SamplingConfig

        opened = self.open()
        tokenizer = tokenizer_of(opened)
        if tokenizer is None:
            raise no_tokenizer(opened)
        healed = heal(tokenizer, prompt)
        generator = Generator(
            opened.trainer.model,
            opened.params,
            state=opened.state,
            environment=opened.environment,
            known=tokenizer.known,
        )
        sampling = SamplingConfig(temperature=temperature, seed=seed)
        first = first_tokens(tokenizer, [healed])
        (completion,) = generator.generate([healed.ids], max_tokens, sampling, tokenizer.stop_ids, first)
        return continued(tokenizer, healed, completion.token_ids)


def train(
    experiment: str | Config | Composition,
    directory: str | Path,
    *,
    target: str | None = None,
    modifiers: Sequence[str] = (),
    overrides: Sequence[str] = (),
    data: str | None = None,
    steps: int | None = None,
    initial: str | Path | None = None,
    from_step: int | None = None,
    screen: Screen | None = None,
) -> TrainedRun:
    """Trains in a directory, or goes on with the run that is there, and returns what came of it.

    Args:
        experiment: a name, a folder with a model, a config, or a composition, which takes none of the next four.
        directory: the run's; made if need be. A run of another experiment is refused.
        target: hardware to compose for; None: this machine's devices.
        modifiers: as `--modify`, in order.
        overrides: as `--set`, last.
        data: as `--data`.
        steps: how many updates the run is to have; None: the experiment's.
        initial: folder whose weights a new run starts from; None: the one the experiment was derived from, if any.
        from_step: checkpoint of the run to go on from; later ones are set aside. None: the newest.
        screen: what shows progress; None: log lines of the logger "kanawa_runtime".
    """
    from kanawa.composition.detect import local_target

    if isinstance(experiment, Composition):
        if target or modifiers or overrides or data:
            message = "a composition is complete: give target, modifiers, overrides and data to compose() instead"
            raise UsageError(message)
        composition = experiment
    else:
        composition = compose(experiment, target or local_target(), modifiers, overrides, data)
    place = run_place(directory, "the run's directory")
    source = composition.source
    start = readable_folder(initial) if initial is not None else source
    if start is not None and (stands_for(start) or start.resolve()) == (
        place if isinstance(place, str) else place.resolve()
    ):
        start = None  # the run itself goes on
    outcome = Loop(composition, place, steps=steps, initial=start, from_step=from_step, screen=screen).execute()
    return TrainedRun(place, outcome)
