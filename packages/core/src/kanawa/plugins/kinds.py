"""The kinds of component that core's own contracts ask for; a plugin adds its own with `kanawa_kinds`."""

from __future__ import annotations

from collections.abc import Iterable

from kanawa.plugins.discovery import CORE
from kanawa.plugins.records import Kind
from kanawa.plugins.states import SKIP_VARIABLE

_LAYERS, _PARALLEL, _RUNTIME, _TOOLS = "kanawa-layers", "kanawa-parallel", "kanawa-runtime", "kanawa-kernel-tools"
_CALLABLE = "collections.abc:Callable"
CORE_KINDS = (
    Kind("layers", "modules of a model", subclass_of="kanawa.config:Configurable", home=_LAYERS),
    Kind("models", "functions that return a model's config", instance_of=_CALLABLE, home=_LAYERS),
    Kind("kernels", "implementations of operations", subclass_of="kanawa.kernels:Kernel"),
    Kind("kernel_examples", "problems of an operation", instance_of="kanawa.testing.compare:Examples", home=_TOOLS),
    Kind("kernel_tools", "functions that compile a kernel alone", instance_of=_CALLABLE, home=_TOOLS),
    Kind("strategies", "ways to use a mesh axis", subclass_of="kanawa.contracts:Strategy", home=_PARALLEL),
    Kind("modifiers", "rewrites of a config", subclass_of="kanawa.config:Modifier", home=_LAYERS),
    Kind("optimizers", "update rules", subclass_of="kanawa.contracts:Optimizer", home=_RUNTIME),
    Kind("schedules", "learning rates over steps", subclass_of="kanawa.contracts:ScheduleFactory", home=_RUNTIME),
    Kind(
        "gradients", "ways to get gradients of a loss", subclass_of="kanawa.contracts:GradientStrategy", home=_RUNTIME
    ),
    Kind(
        "remat",
        "what the backward pass keeps: policies, or functions that return one",
        instance_of=_CALLABLE,
        makes="kanawa.contracts:RematPolicy",
        home=_PARALLEL,
    ),
    Kind("masks", "predicates that an attention mask may name", instance_of=_CALLABLE),
    Kind("caches", "keys and values cached while decoding", subclass_of="kanawa.contracts:Cache", home=_LAYERS),
    Kind("workloads", "programs over a model", subclass_of="kanawa.contracts:Workload", home=_RUNTIME),
    Kind("data", "sources of training rows", subclass_of="kanawa.contracts:DataSource", home=_RUNTIME),
    Kind("tokenizers", "text to token ids and back", instance_of=_CALLABLE, home=_RUNTIME),
    Kind("services", "observers of a run", subclass_of="kanawa.contracts:Service", home=_RUNTIME),
    Kind("checkpointers", "ways to save and restore a run", subclass_of="kanawa.contracts:Checkpointer", home=_RUNTIME),
    Kind(
        "storages",
        "where runs lie, by the scheme of the address",
        subclass_of="kanawa.contracts:Storage",
        home=_RUNTIME,
    ),
    Kind("loaders", "rows to batches, read ahead", subclass_of="kanawa.contracts:Loader", home=_RUNTIME),
    Kind("experiments", "functions that return a workload's config", instance_of=_CALLABLE, home=_RUNTIME),
    Kind(
        "templates",
        "makers of experiments from models",
        subclass_of="kanawa.contracts:ExperimentTemplate",
        home=_RUNTIME,
    ),
    Kind("api", "functions of `import kanawa as kn`", instance_of=_CALLABLE),
    Kind(
        "adapter_stores",
        "ways to keep adapters in a folder",
        subclass_of="kanawa.contracts:AdapterStore",
        home=_RUNTIME,
    ),
    Kind("model_stores", "ways to keep models in a folder", subclass_of="kanawa.contracts:ModelStore", home=_RUNTIME),
)


def merge_kinds(contributed: Iterable[tuple[str, Iterable[Kind]]]) -> tuple[dict[str, Kind], list[str]]:
    """Returns core's kinds and those that plugins declare (plugin's name, its kinds), by name; and what clashes.

    Where two declare one name differently, core's holds, else that of the plugin that is called first.
    """
    kinds = {kind.name: kind for kind in CORE_KINDS}
    declared_by, clashes = dict.fromkeys(kinds, CORE), []
    for plugin, offered in contributed:
        for kind in offered:
            if kinds.setdefault(kind.name, kind) != kind:
                clashes.append(
                    f"{declared_by[kind.name]} and {plugin} declare kind {kind.name!r} differently: "
                    f"{kinds[kind.name]} and {kind}; the first one holds; {SKIP_VARIABLE}={plugin} leaves the other out"
                )
            declared_by.setdefault(kind.name, plugin)
    return kinds, clashes
