"""What a folder says of the experiment to make of it: a run's own config, a model's tokenizer."""

from pathlib import Path

from kanawa.composition.experiment import Composition
from kanawa.config import Config
from kanawa.errors import UsageError

from kanawa_runtime.runs.run_directory import CONFIG, EVENTS, ORIGIN, read_config
from kanawa_runtime.runs.run_path import check_is_directory
from kanawa_runtime.storage.mirror import readable_folder
from kanawa_runtime.storage.place import run_place, shown_place, stands_for


def own_experiment(directory: Path) -> Config | None:
    """Returns the experiment that a run trains, without its placement: the next target decides anew.

    None for what is no run, and for one that was imported and never trained: its config says nothing of learning.
    """
    from kanawa_runtime.runs.model_store import RunStore

    if not RunStore().holds(directory):
        return None
    if (directory / ORIGIN).is_dir() and not (directory / EVENTS).exists():
        return None
    cfg = read_config(directory).clone()
    if "execution" in cfg.fields():
        cfg.execution.set(mesh=None, strategies=())
    return cfg


def run_and_start(composition: Composition, run: str | None, initial: str | None) -> tuple[Path | str, Path | None]:
    """Returns the run directory of `kanawa train`, and the folder whose weights a new run starts from.

    A run that is named without other data resumes in its own directory; anything else derived from a folder is a new
    run. Raises UsageError for a folder without data to learn from, if none is given.
    """
    start = _readable(initial) if initial else None
    place = run_place(run, "--run") if run else None
    # Before a tokenizer is learned and parameters are made, which takes a minute. A resumed run doesn't need it.
    if start is not None and not (isinstance(place, Path) and (place / CONFIG).exists()):
        check_is_directory(start)
    source = composition.source
    if source is None:
        return place or Path(f"runs/{composition.name.replace(':', '-')}"), start
    trained = own_experiment(source) is not None
    if trained and composition.data is None and (place is None or _is_same(place, source)):
        return stands_for(source) or source, start
    if not trained and composition.data is None:
        message = (
            f"{shown_place(source)} holds a model and no data to train it on; say which: "
            f"kanawa train {shown_place(source)} --data 'mytext/**/*.txt'"
        )
        raise UsageError(message)
    return place or Path(f"runs/{composition.name}-tuned"), start or source


def _readable(initial: str) -> Path:
    """Returns the folder of weights to start from; raises UsageError for a text that is none."""
    place = run_place(initial, "--init-from")
    return readable_folder(place) if isinstance(place, str) else place


def _is_same(place: Path | str, source: Path) -> bool:
    return stands_for(source) == place if isinstance(place, str) else place.resolve() == source.resolve()
