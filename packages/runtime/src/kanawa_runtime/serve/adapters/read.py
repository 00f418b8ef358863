"""Finding what reads an adapter's folder."""

from pathlib import Path

from kanawa.composition.plain import plain_config
from kanawa.config import Config
from kanawa.contracts import AdapterStore, StoredAdapter
from kanawa.errors import UsageError
from kanawa.plugins import component, host

from kanawa_runtime.runs.run_path import check_is_directory


def load_adapter(directory: Path, model: Config) -> StoredAdapter:
    """Returns the adapter in a folder, made for a model with this config.

    Raises UsageError where no catalogued store knows the folder, and what the store raises.
    """
    check_is_directory(directory)
    for state in host().components("adapter_stores"):
        if state.state.usable:
            store: AdapterStore = component("adapter_stores", state.name)()
            if store.holds(directory):
                # What form the model keeps its weights in says nothing of what others call its projections.
                return store.load(directory, plain_config(model))
    names = ", ".join(sorted(state.name for state in host().components("adapter_stores")))
    message = f"{directory} holds no adapter of a known kind ({names}): a run that trained one, or a folder of peft"
    raise UsageError(message)
