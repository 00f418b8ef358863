"""Every hook core calls, grouped by phase; each docstring is the contract.

The host calls implementations one at a time, ordered by `PRIORITY` of the plugin module (an int,
0 unless set, smaller is earlier), distribution and name. An implementation may take fewer arguments
than the spec; wrappers are refused.

A hook that contributes must not raise: that marks the plugin broken and drops what it contributes,
with a warning. But a hook that answers about an argument may raise a KanawaError, which is the
answer. A hook that observes may raise: that is logged once, and after three times the plugin no
longer observes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from kanawa.plugins.records import (
    Calibration,
    Command,
    CommandOptions,
    Component,
    DeviceSpec,
    Finding,
    Kind,
    MeshRule,
    ProgramTraits,
    PublishedStep,
    Purpose,
)
from kanawa.plugins.schedules import RecordedCycles

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PROJECT = "kanawa"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# What hooks list; the host checks it.
CONTRIBUTIONS: dict[str, type] = {
    "kanawa_kinds": Kind,
    "kanawa_components": Component,
    "kanawa_commands": Command,
    "kanawa_command_options": CommandOptions,
    "kanawa_device_specs": DeviceSpec,
    "kanawa_mesh_rules": MeshRule,
    "kanawa_published_steps": PublishedStep,
    "kanawa_calibrations": Calibration,
    "kanawa_recorded_cycles": RecordedCycles,
    "kanawa_doctor": Finding,
    "kanawa_compile_cache_key": str,
    "kanawa_config_checks": str,
}

# --- discovery ------------------------------------------------------------------------


@hookspec
def kanawa_hookspecs() -> ModuleType | type:
    """Returns a module or class with hook specs of the plugin's own, named `kanawa_…`.

    Called once, while plugins are registered. The specs may be implemented by any plugin.
    """


@hookspec
def kanawa_kinds() -> Sequence[Kind]:
    """Returns the kinds of component that this plugin's own code looks up, beside core's.

    Called when someone asks for them. Without it `kanawa list` and the conformance kit report the group as misspelt.
    """


@hookspec
def kanawa_components() -> Sequence[Component]:
    """Returns components that entry points can't list because they depend on the machine.

    Called once, after all plugins are registered. Must be quick and import nothing heavy.
    """


@hookspec
def kanawa_commands() -> Sequence[Command]:
    """Returns verbs for the command line. Called at each start of it, so import inside `run`."""


@hookspec
def kanawa_command_options() -> Sequence[CommandOptions]:
    """Returns options for verbs of other packages. Called at each start of the command line, so import inside `run`."""


# --- targets --------------------------------------------------------------------------


@hookspec
def kanawa_device_specs() -> Sequence[DeviceSpec]:
    """Returns the devices this plugin knows, with cited figures. Needs neither device nor JAX."""


@hookspec
def kanawa_mesh_rules() -> Sequence[MeshRule]:
    """Returns mesh rules. The highest `priority` that matches wins; a user's rule wins over all."""


@hookspec
def kanawa_placement(question: Any) -> MeshRule | None:
    """Returns the mesh and the modifiers for an experiment on several devices, or None to leave it to the shipped rule.

    `question` is a `kanawa.composition.placement.PlacementQuestion`. Asked where no rule of the user fits; the answer
    must be a function of the question alone, since every process of a run asks for itself.
    """


@hookspec
def kanawa_published_steps() -> Sequence[PublishedStep]:
    """Returns step times that others published of experiments this plugin knows; plans are held against them."""


@hookspec
def kanawa_calibrations() -> Sequence[Calibration]:
    """Returns what programs reach on this plugin's devices, for each compiler that was fitted on published steps."""


@hookspec
def kanawa_recorded_cycles() -> Sequence[RecordedCycles]:
    """Returns what this plugin's kernels take by their compiler's schedules, for plans without that compiler."""


@hookspec
def kanawa_compiler_options(device: DeviceSpec, purpose: Purpose) -> dict[str, Any] | None:
    """Returns XLA compiler options for `device`, or None if it is not this plugin's.

    `purpose` is "train", "prefill" or "decode". Two plugins that set one option differently are an
    error.
    """


@hookspec
def kanawa_program_traits(device: DeviceSpec, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits | None:
    """Returns what the compiler of `device` needs of a program, or None if it is not this plugin's.

    `parameters` are those of the model, 0 where unknown; `devices` is how many JAX devices the program runs on.
    """


@hookspec
def kanawa_topology(target: Any) -> list[Any] | None:
    """Returns compile-only JAX devices for a `Target`, or None if it is not this plugin's.

    The list has `target.jax_devices` entries. Imports JAX inside. Raises TargetError, saying
    what to install, if the compiler is not there.
    """


# --- composition ----------------------------------------------------------------------


@hookspec
def kanawa_local_folder(address: str) -> Path | None:
    """Returns a local folder with the config of the run at an address, or None where this plugin keeps no runs there.

    Raises UsageError or StorageError where the address is of a known kind and can't be read.
    """


@hookspec
def kanawa_config_checks(config: Any, target: Any, model: Any) -> Sequence[str]:
    """Returns what is wrong with the composed, frozen config, one sentence each; empty if nothing.

    `target` is the `Target` it is composed for, or None. `model` is what `config.model` builds, or None where there is
    none or it can't be built, which is reported already. Must not change the config.
    """


@hookspec
def kanawa_doctor(options: Mapping[str, Any]) -> Sequence[Finding]:
    """Returns what a preflight of this machine found. May take a second; touches no device.

    `options` are those of `kanawa doctor` by name, those that plugins add to it among them.
    """


# --- running --------------------------------------------------------------------------


@hookspec
def kanawa_process_environment(device: DeviceSpec, root: str, processes: int, index: int) -> dict[str, str] | None:
    """Returns the variables that process `index` of a gang on `device` needs, or None if it is not this plugin's.

    There is one process a host; `root` is the name or address of that of process 0. Called before JAX starts. What the
    process's environment has already wins.
    """


@hookspec
def kanawa_process_started(purpose: str) -> None:
    """Observes that a process begins that will compute, before JAX starts; may prepare it, such as its allocator.

    `purpose` is "serve" for a process whose threads allocate at the same time, as a server's, else "train".
    """


@hookspec
def kanawa_compile_cache_key() -> Sequence[str]:
    """Returns what of this machine compiled programs depend on, such as instruction sets; no JAX.

    The compile cache has a folder for each combination, beside the versions of JAX and of devices' compilers.
    """


@hookspec
def kanawa_run_started(run: Any) -> None:
    """Observes that a run begins or resumes, after its state is restored."""


@hookspec
def kanawa_step_ended(run: Any, event: Any) -> None:
    """Observes the step record as written to `events.jsonl`. Runs on the host; must be quick."""


@hookspec
def kanawa_checkpoint_committed(run: Any, event: Any) -> None:
    """Observes that a checkpoint is complete and readable."""


@hookspec
def kanawa_run_ended(run: Any, event: Any) -> None:
    """Observes the end of a run; `event` carries its outcome."""
