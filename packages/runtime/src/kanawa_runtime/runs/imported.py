"""Models that no run of ours trained: found in a folder by the installed model stores."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import from_plain, is_tuned
from kanawa.config import Config
from kanawa.contracts import MaskedLM, Model, ModelStore, StoredModel
from kanawa.errors import UsageError
from kanawa.module import Module, param_specs
from kanawa.plugins import ask_each, component, host

from kanawa_runtime.runs.run_path import check_is_directory
from kanawa_runtime.storage.mirror import readable_folder

#: The name under which this package catalogues its own store.
OWN = "run"
#: Trainer and data are of floors above this one, which finds them as everyone does: in the catalog.
_OURS = "kanawa-runtime"
#: Beyond it a parameter is as good as infinite: its square overflows fp32, and with it every norm and inner product.
LARGEST_PARAMETER = 1e19
_MOST_NAMED = 8
#: A step on a processor must end; an accelerator idles on less.
_CPU_LENGTH, _LENGTH = 256, 2048


def row_length(model: Module, platform: str | None) -> int:
    """Returns the tokens of a row for a model that came without an experiment."""
    longest: int | None = model.longest_sequence() if isinstance(model, Model) else None
    return min(_CPU_LENGTH if platform in (None, "cpu") else _LENGTH, longest or _LENGTH)


def imported_experiment(model: Config, platform: str | None = None) -> Config:
    """Returns an experiment around a model that came without one: random tokens until someone sets `data`.

    A model of hidden tokens has some of them hidden. One whose records aren't rows of tokens can be stored in such an
    experiment, and is refused where it would be trained.
    """
    length, kind = row_length(model.build(), platform), model._target or object
    sizes = {"vocab_size": model.vocab_size} if "vocab_size" in model.fields() else {}
    data = component("data", f"{_OURS}:random-tokens").Config(sequence_length=length, **sizes)
    if issubclass(kind, MaskedLM):
        masked = component("data", f"{_OURS}:masked").Config
        data = masked(sequence_length=length, source=data, mask_id=model.vocab_size - 1)
    experiment: Config = component("workloads", f"{_OURS}:trainer").Config(
        model=model, data=data, batch_size=8, steps=1
    )
    return experiment


def _stores(directory: Path) -> Iterator[tuple[str, ModelStore]]:
    """Yields the usable model stores that hold a folder, with their names."""
    for state, store, holds in ask_each("model_stores", lambda store: store.holds(directory)):
        if holds:
            yield state.name, store


def stored_elsewhere(directory: Path, step: int | None = None) -> StoredModel | None:
    """Returns the model of a folder that another store holds; None for a run of ours, or an unknown kind."""
    return next((store.load(directory, step) for name, store in _stores(directory) if name != OWN), None)


def outline_of(directory: Path) -> StoredModel | None:
    """Returns the model of a run or of any other known folder without its arrays; None for an unknown kind."""
    directory = readable_folder(directory)
    return next((store.outline(directory) for _, store in _stores(directory)), None)


def stored_model(directory: Path) -> StoredModel:
    """Returns the model of a run or of any other known folder; raises UsageError for an unknown kind."""
    directory = readable_folder(directory)
    check_is_directory(directory)
    # A run that starts from this one has its own mesh in force, and JAX refuses arrays of one device under it.
    with jax.set_mesh(Mesh(np.array(jax.local_devices()[:1]), ("here",))):
        stored = stored_elsewhere(directory)
        own = component("model_stores", OWN, asker="kanawa-runtime")()
        if stored is None and own.holds(directory):
            stored = own.load(directory)
    if stored is None:
        names = ", ".join(sorted(state.name for state in host().components("model_stores")))
        message = f"{directory} holds no model of a known kind ({names})"
        raise UsageError(message)
    return stored


def fitted(stored: StoredModel, module: Module) -> Mapping[str, Any]:
    """Returns the stored parameters as the module keeps them: a plain model's get its adapters and weight forms.

    Adapters start as they do everywhere, so the model computes what the stored one did, up to quantisation.
    """
    same = stored.params.keys() == flatten_paths(param_specs(module)).keys()
    if same or not is_tuned(module):
        return stored.params
    return flatten_paths(reformed(module, unflatten_paths(stored.params)))


def reformed(module: Module, plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a plain model's parameters with the module's weight forms and, as they start everywhere, its adapters."""
    return from_plain(module, plain, jax.random.key(0, impl="threefry2x32"))


def check_sound(stored: StoredModel, source: Path | str) -> None:
    """Raises UsageError for a model with numbers that nothing can be computed with: what it becomes is saved unseen."""
    groups = {"params": stored.params, "state": stored.state}
    problems = []
    for group, arrays in groups.items():
        problems += unsound_on_host(group, {path: np.asarray(array) for path, array in arrays.items()})
    if problems:
        more = f"\n  and {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
        message = (
            f"{source} holds numbers that are NaN, infinite, or too large to compute with; nothing was started:\n  "
            + "\n  ".join(problems[:_MOST_NAMED])
            + f"{more}\nCopy it again from where it came from, or choose an earlier step of the run that it is"
        )
        raise UsageError(message)


def unsound_on_host(group: str, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Returns which host arrays of a group can't be trained on, each with the count of such elements."""
    problems = []
    for path, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            continue
        with np.errstate(all="ignore"):
            sound = np.isfinite(array)
            if group == "params" and float(jnp.finfo(array.dtype).max) > LARGEST_PARAMETER:
                sound &= np.abs(array) <= np.asarray(LARGEST_PARAMETER, array.dtype)
        if not sound.all():
            bad = np.size(sound) - np.count_nonzero(sound)
            problems.append(f"{group}: {path} ({bad} of {np.size(sound)} elements)")
    return problems


def place(arrays: Mapping[str, Any], abstract: Any) -> dict[str, Any]:
    """Returns host arrays on their devices, in the structure, dtypes and shardings of the abstract tree.

    Raises UsageError naming every array that is missing, left over, or of another shape.
    """
    wanted = flatten_paths(abstract)
    problems = [f"{path}: missing" for path in wanted if path not in arrays]
    problems += [f"{path}: left over" for path in arrays if path not in wanted]
    problems += [
        f"{path}: has shape {list(np.shape(arrays[path]))}, expected {list(leaf.shape)}"
        for path, leaf in wanted.items()
        if path in arrays and np.shape(arrays[path]) != leaf.shape
    ]
    if problems:
        message = "\n  ".join(["the model's arrays are not those asked for:", *problems])
        raise UsageError(message)
    return unflatten_paths({path: _placed(arrays[path], leaf) for path, leaf in wanted.items()})


def _placed(array: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    placed: jax.Array = jax.device_put(np.asarray(array).astype(leaf.dtype, copy=False), leaf.sharding)
    return placed
