"""Adapters in folders: found by the installed store that knows the folder, such as peft's or that of our own runs."""

from pathlib import Path

from kanawa.composition.plain import plain_config
from kanawa.config import Config
from kanawa.contracts import StoredAdapter, without_companions
from kanawa.errors import UsageError
from kanawa.plugins import ask_each, host

from kanawa_runtime.runs.imported import outline_of
from kanawa_runtime.runs.run_path import check_is_directory


def load_adapter(directory: Path, model: Config) -> StoredAdapter:
    """Returns the adapter in a folder, made for a model with this config.

    Raises UsageError where no catalogued store knows the folder, and what the store raises.
    """
    check_is_directory(directory)
    for _, store, holds in ask_each("adapter_stores", lambda store: store.holds(directory)):
        if holds:
            # Names of projections don't depend on the form that the model stores its weights in.
            stored: StoredAdapter = store.load(directory, plain_config(without_companions(model)))
            return stored
    names = ", ".join(sorted(state.name for state in host().components("adapter_stores")))
    message = f"{directory} holds no adapter of a known kind ({names}): a run that trained one, or a folder of peft"
    raise UsageError(message)


def holds_adapter_alone(directory: Path) -> bool:
    """Returns whether a folder has an adapter and no model: training then needs the model from elsewhere."""
    if not directory.is_dir() or outline_of(directory) is not None:
        return False
    return any(holds for _, _, holds in ask_each("adapter_stores", lambda store: store.holds(directory)))
