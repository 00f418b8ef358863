"""What a run records of its programs: kernels, parameters by module, FLOPs by the model's own count, memory."""

import contextlib
import dataclasses
import math
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Environment
from kanawa.kernels import KernelChoice
from kanawa.plugins.devices import device_spec_of_kind

#: The member of a checkpoint's meta record.
KERNELS = "kernels"
_Chosen = tuple[str, tuple[tuple[str, int], ...]]


class KernelRecord:
    """(operation, problem) to kernel and tuning, as chosen on one platform; those of another say nothing here."""

    def __init__(self, platform: str, chosen: Mapping[tuple[str, str], _Chosen] | None = None) -> None:
        self.platform = platform
        self._chosen = dict(chosen or {})

    @classmethod
    def of(cls, meta: Mapping[str, Any], platform: str) -> "KernelRecord":
        """Returns the record of a checkpoint; an empty one where it has none for this platform."""
        kept = meta.get(KERNELS, {})
        if kept.get("platform") != platform:
            return cls(platform)
        # Checkpoints of older versions name no tuning.
        chosen = {
            (operation, problem): (kernel, tuple(sorted((rest[0] if rest else {}).items())))
            for operation, problem, kernel, *rest in kept["chosen"]
        }
        return cls(platform, chosen)

    def add(self, choices: Iterable[KernelChoice]) -> list[KernelChoice]:
        """Takes the choices of a program; returns those for problems that were not met before in this attempt."""
        new = []
        for choice in choices:
            met, use = (choice.operation, choice.problem), (choice.kernel, choice.tuning)
            if self._chosen.get(met) != use:
                new.append(choice)
            self._chosen[met] = use
        return new

    def applied(self, where: Environment) -> Environment:
        """Returns the environment in which the recorded choices are kept."""
        recorded = tuple((*met, *use) for met, use in self._chosen.items())
        policy = dataclasses.replace(where.plan.kernels, recorded=recorded)
        return dataclasses.replace(where, plan=dataclasses.replace(where.plan, kernels=policy))

    def as_json(self) -> dict[str, Any]:
        """Returns what a checkpoint's meta record holds."""
        chosen = [[*met, kernel, dict(tuning)] for met, (kernel, tuning) in self._chosen.items()]
        return {"platform": self.platform, "chosen": chosen}


#: Deeper modules are counted with those they are part of: `stack.layer.attention`.
_DEPTH = 3
#: A forward pass, and a backward one that costs twice as much.
_PASSES = 3


def program_record(trainer: Any, compiled: Any, precision: str) -> dict[str, Any]:
    """Returns the fields of a `program` event about a trainer's compiled step.

    `model_flops_per_step` counts what `plan` counts: forward matmuls three times, attention over the keys that a causal
    mask leaves, nothing recomputed. `peak_flops_per_chip` is None where no figure is known: a processor's is a guess.
    """
    cfg = trainer.config
    fields = trainer.source.fields.items()
    row = trainer.model.flops_per_row({name: field.shape for name, field in fields if field is not None})
    flops = None if row is None else _PASSES * row * cfg.batch_size
    counts = {path: math.prod(spec.shape) for path, spec in flatten_paths(trainer.specs).items()}
    return {
        "program": "train_step",
        "parameters": sum(counts.values()),
        "trained_parameters": sum(counts[path] for path in trainer.rule.specs),
        "parameters_by_module": by_module(counts),
        "model_flops_per_step": flops,
        "memory_per_device_bytes": compiled_memory(compiled),
        **device_record(precision),
    }


def by_module(counts: Mapping[str, int], depth: int = _DEPTH) -> dict[str, int]:
    """Returns parameters by module, in the tree's order; a path's last name is the parameter's own."""
    modules: dict[str, int] = {}
    for path, count in counts.items():
        name = ".".join(path.split(".")[:-1][:depth]) or path
        modules[name] = modules.get(name, 0) + count
    return modules


def device_record(precision: str) -> dict[str, Any]:
    """Returns the chips of the run, and what one can do at best in dtype `precision`, where a backend knows."""
    device = jax.local_devices()[0]  # others of a gang keep no account that this process may read
    spec = device_spec_of_kind(device.device_kind)
    known = spec is not None and not spec.divisible
    return {
        "device_kind": device.device_kind,
        "chips": jax.device_count() / (spec.jax_devices_per_chip if spec else 1),
        "peak_flops_per_chip": spec.peak_flops.get(precision) if known and spec else None,
        "peak_flops_dtype": precision,
        "peak_flops_source": spec.source if known and spec else None,
        "memory_limit_bytes": (device.memory_stats() or {}).get("bytes_limit"),
    }


def compiled_memory(compiled: Any) -> dict[str, int] | None:
    """Returns bytes on each device by what they hold, as the compiler planned them; None where it doesn't say."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    arguments, aliased = analysis.argument_size_in_bytes, analysis.alias_size_in_bytes
    # Donated arguments are the outputs' memory: what comes out in it is not counted again.
    parts = {
        "state and batch": arguments,
        "temporaries": analysis.temp_size_in_bytes,
        "results beside the state": max(0, analysis.output_size_in_bytes - aliased),
        "code": analysis.generated_code_size_in_bytes,
    }
    return {name: int(size) for name, size in parts.items()}


def memory_peaks() -> dict[str, int | None]:
    """Returns the most memory this process's devices had in use so far, and the process itself, in bytes.

    A device that keeps no account, such as a processor, gives None.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [entry["peak_bytes_in_use"] for entry in stats if "peak_bytes_in_use" in entry]
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"device_peak_bytes": max(peaks) if peaks else None, "process_peak_bytes": own}


@contextlib.contextmanager
def counted_hits() -> Iterator[list[str]]:
    """Gives a list that gets an entry for each program that JAX takes from its persistent cache meanwhile."""
    hits: list[str] = []

    def listen(event: str, **fields: Any) -> None:
        del fields
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield hits
    finally:
        jax.monitoring.unregister_event_listener(listen)
