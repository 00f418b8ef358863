"""LoRA adapters of our own runs, as an adapter store."""

from pathlib import Path

import jax
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, plain_config
from kanawa.config import Config
from kanawa.contracts import AdapterStore, StoredAdapter
from kanawa.errors import UsageError
from kanawa.module import param_specs

from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run

_MAX_NAMED = 5


class RunAdapters(AdapterStore):
    """The newest checkpoint of a run with `lora` or `qlora`."""

    def holds(self, directory: Path) -> bool:
        """Returns whether it is a run."""
        return RunStore().holds(directory)

    def load(self, directory: Path, model: Config) -> StoredAdapter:
        """Returns the adapter; raises UsageError for a run without one, or of a model with other weights."""
        run = open_run(directory, serves=True)
        module = run.trainer.model
        trained = {p: jax.device_get(x) for p, x in flatten_paths(run.params).items() if ".adapter." in p}
        factors = adapter_factors(module, unflatten_paths(trained))
        if not factors:
            message = f"{directory} trained no adapter: train it with --modify lora:rank=…, or serve it as a model"
            raise UsageError(message)
        theirs, ours = (_shapes(cfg) for cfg in (module.config, model))
        other = sorted(path for path in theirs.keys() | ours.keys() if theirs.get(path) != ours.get(path))
        if other:
            listed = ", ".join(other[:_MAX_NAMED]) + (" …" if len(other) > _MAX_NAMED else "")
            message = f"the adapter in {directory} was trained beside other weights than this model's: {listed} differ"
            raise UsageError(message)
        return StoredAdapter(factors)


def _shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    return {path: spec.shape for path, spec in flatten_paths(param_specs(plain_config(cfg).build())).items()}
