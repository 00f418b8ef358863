"""`kn.open`: a run, or another library's folder, and what can be done with it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

from kanawa.api.experiment import Modify, Set, as_modifiers, as_overrides
from kanawa.config import Config
from kanawa.contracts import Evaluation, Generated, Model, Picture, Settings, TrainedRun, open_storage
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.status import stage, stages_shown

from kanawa_runtime.api.evaluation import evaluated
from kanawa_runtime.api.generation import TOKENS, Prompts, generated
from kanawa_runtime.api.pictures import pictures_of
from kanawa_runtime.api.task_evaluation import task_results
from kanawa_runtime.checkpoint.layout import EVENTS
from kanawa_runtime.data.other_data import reads_files
from kanawa_runtime.data.tokenizers.load import tokenizer_of
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.evaluate.results import TaskResult
from kanawa_runtime.evaluate.task_file import read_task
from kanawa_runtime.process import prepare_process
from kanawa_runtime.runs.events import read_events, step_records
from kanawa_runtime.runs.open_run import OpenedRun, open_run
from kanawa_runtime.runs.run_path import check_is_directory, check_is_run, looks_like_run, not_a_run
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.generate import SamplingConfig, check_generates
from kanawa_runtime.serve.pictures.maker import GUIDANCE
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import address_of, stands_for
from kanawa_runtime.train.outcome import Outcome


def open_path(
    path: str | Path,
    *,
    step: int | None = None,
    on: str | None = None,
    modify: Modify = (),
    set: Set = (),  # noqa: A002 - as `--set`
    data: str | None = None,
) -> "Run":
    """Returns the run, or the folder: see `kanawa.open`."""
    folder = readable_folder(path)
    check_is_directory(folder)
    if not looks_like_run(folder):
        raise not_a_run(folder)
    return Run(path, step=step, on=on, modify=modify, set=set, data=data)


class Run(TrainedRun):
    """A run's folder or address. Its checkpoint is read when it is first needed, and kept."""

    def __init__(
        self,
        directory: str | Path,
        *,
        step: int | None = None,
        on: str | None = None,
        modify: Modify = (),
        set: Set = (),  # noqa: A002 - as `--set`
        data: str | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """Reads nothing; `outcome` is how training ended, of a run that was just trained."""
        self.directory = str(directory) if address_of(str(directory)) else Path(directory)
        self._step, self._target, self._data = step, on, data
        self._modifiers, self._overrides = as_modifiers(modify), as_overrides(set)
        self._outcome = outcome
        self._opened: OpenedRun | None = None
        self._has_batches = False

    def __repr__(self) -> str:
        return f"kn.open({str(self.directory)!r})"

    # --- what it is --------------------------------------------------------------------------------------------

    def opened(self, *, with_batches: bool = False) -> OpenedRun:
        """Returns the run with its checkpoint; `with_batches` if batches are needed, whose rows the mesh divides."""
        if self._opened is None or (with_batches and not self._has_batches):
            self._opened = None  # two copies of the parameters might not fit
            self._opened, self._has_batches = self._open(with_batches=with_batches, data=self._data), with_batches
        return self._opened

    def _open(self, *, with_batches: bool, data: str | None) -> OpenedRun:
        prepare_process()
        with stages_shown(), stage(f"reading {self.directory}"):
            return open_run(
                self.directory,
                target=self._target,
                modifiers=self._modifiers,
                overrides=self._overrides,
                step=self._step,
                data=data,
                serves=not with_batches,
            )

    @property
    def folder(self) -> Path:
        """The local folder of the run; of one at an address, the one with its small files."""
        return readable_folder(self.directory)

    @property
    def config(self) -> Config:
        """The experiment's frozen config, without the mesh it was trained on."""
        return self.opened().composition.config

    @property
    def model(self) -> Model:
        """The built model."""
        return self.opened().trainer.model

    @property
    def params(self) -> Any:
        """The parameters of the checkpoint."""
        return self.opened().params

    @property
    def state(self) -> Any:
        """The model's state of the checkpoint."""
        return self.opened().state

    @property
    def step(self) -> int:
        """Updates that the parameters have had."""
        return self.opened().step

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the training data; None where there is none."""
        return tokenizer_of(self.opened())

    @property
    def outcome(self) -> Outcome | None:
        """How training ended; None of a run that was only opened."""
        return self._outcome

    @property
    def events(self) -> list[dict[str, Any]]:
        """The records of all attempts, in order; none of a folder that was never trained."""
        file = self.folder / EVENTS
        return read_events(file) if file.is_file() else []

    @property
    def losses(self) -> list[float]:
        """The loss before each update, from the first."""
        return [record["loss"] for _, record in sorted(step_records(self.events).items())]

    # --- what can be done with it ------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: str | list[int], *, pictures: Sequence[Any] | None = None, **settings: Unpack[Settings]
    ) -> Generated: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        *,
        pictures: Sequence[Sequence[Any]] | None = None,
        **settings: Unpack[Settings],
    ) -> list[Generated]: ...

    def generate(
        self, prompt: Any, *, pictures: Sequence[Any] | None = None, **settings: Unpack[Settings]
    ) -> Generated | list[Generated]:
        """Returns what the model puts after a prompt, or after each of a list of prompts, decoded side by side.

        `pictures` as `TrainedRun.generate` has them.
        """
        is_one = isinstance(prompt, str) or bool(prompt and isinstance(prompt[0], int))
        every = settings.get("max_tokens", TOKENS)
        seen = [pictures] if is_one and pictures is not None else pictures
        with stages_shown(), stage("generating"):
            *_, last = self._stream([prompt] if is_one else prompt, settings, every, seen)
        return last[0] if is_one else last

    def stream(
        self, prompts: Prompts, *, pictures: Sequence[Sequence[Any]] | None = None, **settings: Unpack[Settings]
    ) -> Iterator[list[Generated]]:
        """Yields what there is after each prompt, after every token; texts only grow."""
        return self._stream(prompts, settings, 1, pictures)

    def _stream(
        self, prompts: Prompts, settings: Settings, every: int, pictures: Sequence[Sequence[Any]] | None
    ) -> Iterator[list[Generated]]:
        drawn: dict[str, Any] = {name: value for name, value in settings.items() if name != "max_tokens"}
        sampling = SamplingConfig(**drawn).freeze()
        check_generates(self.directory)
        return generated(self.opened(), prompts, settings.get("max_tokens", TOKENS), sampling, every, pictures)

    def pictures(
        self,
        labels: Sequence[int | str] | str | None = None,
        *,
        count: int = 1,
        seed: int = 0,
        steps: int | None = None,
        guidance: float = GUIDANCE,
        sampler: str | None = None,
    ) -> list[Picture]:
        """Returns `count` pictures of each label, all by default, or of each text; see `TrainedRun.pictures`."""
        opened = self.opened()
        with stages_shown(), stage("making pictures"):
            return pictures_of(opened, labels, count, seed, steps, guidance, sampler)

    def evaluate(self, *, data: str | None = None) -> Evaluation:
        """Returns the loss on the held-out split of the run's data, or of `data`; of files all is read."""
        if data is None:
            opened = self.opened(with_batches=True)
        else:
            opened = self._open(with_batches=True, data=data)
        with stages_shown(), stage("evaluating"):
            named = data or self._data
            whole = named is not None and reads_files(named)
            return evaluated(opened, str(self.directory), checks_vocabulary=named is not None, whole=whole)

    def evaluate_tasks(self, files: Sequence[str | Path], *, limit: int | None = None) -> list[TaskResult]:
        """Returns the results of task files, in order; `limit` is the most documents of each, None all.

        Raises TaskError, CorpusError for what is wrong with a file or its data.
        """
        tasks = [read_task(file, limit=limit) for file in files]
        opened = self.opened()
        with stages_shown(), stage("evaluating"):
            return task_results(opened, tasks)

    def engine(self, **fields: Any) -> LLMEngine:
        """Returns a started serving engine; `fields` are those of its config, such as `max_sequences`."""
        config = EngineConfig(**fields).freeze()
        prepare_process(serves=True)
        engine = LLMEngine.of_run(self.opened(), config)
        with stages_shown(), stage("compiling the engine's programs"):
            engine.start()
        return engine

    def report(self, *others: "Run | str | Path", out: str | Path | None = None) -> Path | str:
        """Writes one HTML page about this run and others beside it; returns where it lies: RUN/report.html, or `out`.

        Raises NoRunError, and writes nothing, where one of them is no run.
        """
        from kanawa_runtime.report import write_report

        page = None if out is None else _page(local_path(str(out), "--out"))
        runs = [self.folder, *(one.folder if isinstance(one, Run) else readable_folder(one) for one in others)]
        for folder in runs:
            check_is_run(folder)
        written = page or runs[0] / "report.html"
        write_report(runs, written)
        address = stands_for(runs[0])
        if page is None and address is not None:
            with contextlib.closing(open_storage(address)) as storage:
                storage.write("report.html", written.read_bytes())
            return f"{address}/report.html"
        return written


def _page(out: Path) -> Path:
    """Returns the file to write; raises UsageError for a folder, or one in a folder that isn't there."""
    if out.is_dir():
        message = f"--out {out} is a folder, expected a file such as {out / 'report.html'}"
        raise UsageError(message)
    if not out.parent.is_dir():
        message = f"--out {out}: there is no folder {out.parent}; make it first"
        raise UsageError(message)
    return out
