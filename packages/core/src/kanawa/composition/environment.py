"""From a composition to the environment its programs run in: plan, mesh, compiler options."""

from collections.abc import Sequence
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, KernelUse
from kanawa.composition.blame import blamed
from kanawa.composition.compiler_options import Checked, accepted_options, recommended
from kanawa.composition.experiment import Composition
from kanawa.composition.program_traits import process_device, program_traits
from kanawa.composition.target import Target
from kanawa.contracts import Environment
from kanawa.errors import TargetError, UsageError
from kanawa.kernels.tuning_table import default_path, measured_uses
from kanawa.local_path import local_path
from kanawa.module import count_parameters
from kanawa.status import stage

Devices = Literal["process", "abstract"] | Sequence[jax.Device]


def environment(composition: Composition, devices: Devices = "process") -> Environment:
    """Returns where the composition's programs run.

    `devices` "process": this process's (all hosts') devices; "abstract": none, enough to trace and lower for the
    target; or a list of devices, such as a compiler's topology.
    """
    with stage("looking for devices" if devices == "process" else "describing devices"):
        return _environment(composition, devices)


def _environment(composition: Composition, devices: Devices) -> Environment:
    cfg, target = composition.config, composition.target
    execution = cfg.execution
    rules = []
    for i, strategy in enumerate(execution.strategies):
        with blamed(strategy, f"execution.strategies[{i}]"):
            rules.append(strategy.build())
    # With its own devices a process knows what it runs on; a plan says so only for what isn't here.
    described = None if devices == "process" else target
    with blamed(execution.mesh, "execution.mesh"):
        mesh = None if execution.mesh is None else _mesh(execution.mesh.build(), target, devices)
    parameters = 0 if composition.model is None else count_parameters(composition.model).total
    device = process_device() if target is None else target.device
    plan = ExecutionPlan(
        param_rules=tuple(rule for s in rules for rule in s.param_rules()),
        activation_rules=tuple(rule for s in rules for rule in s.activation_rules()),
        precision=cfg.precision.precision(),
        distributed=tuple(way for s in rules for way in s.distributed()),
        kernels=KernelPolicy(
            tuple(sorted(execution.kernels.items())),
            execution.require_fused,
            measured=_measured(execution.tuning, described),
        ),
        platform=None if described is None else described.device.platform,
        device_kind=None if described is None else _kind(described),
        optimizer_memory=execution.optimizer_memory,
        traits=program_traits(device, "train", parameters, 1 if mesh is None else mesh.size),
    )
    own = execution.compiler_options
    options = recommended(target, own)
    # Without a compiler recommendations are used untried. What the user sets is never tried: it fails
    # with an error.
    if devices == "abstract":
        return Environment(plan, mesh, {**options, **own})
    checked_options = accepted_options(options, _compiled_for(mesh, devices)) if options else Checked()
    return Environment(plan, mesh, {**checked_options.accepted, **own}, checked_options.refused)


def _measured(tuning: str, described: Target | None) -> tuple[KernelUse, ...]:
    """Returns what the config's tuning table says of the devices that programs are made for."""
    kind = jax.devices()[0].device_kind if described is None else _kind(described)
    if tuning == "none" or kind is None:
        return ()
    # Every process of a gang has to lower the same program: a table that one of them lacks would make another.
    if tuning == "auto":
        return () if described is None and jax.process_count() > 1 else _own_table(kind)
    path = local_path(tuning, "execution.tuning")
    if not path.is_file():
        message = (
            f"execution.tuning: there is no file {tuning!r}; expected auto, none, or a table that "
            "`kanawa kernels EXPERIMENT --bench` wrote"
        )
        raise UsageError(message)
    return measured_uses(path, kind)


def _own_table(kind: str) -> tuple[KernelUse, ...]:
    """Returns what this user's table says; nothing where the user has no home that can be entered."""
    try:
        return measured_uses(default_path(), kind)
    except PermissionError:
        return ()


def _compiled_for(mesh: Mesh | AbstractMesh | None, devices: Devices) -> Sequence[jax.Device]:
    """Returns the devices that options are accepted_options on: those that the programs will be compiled for."""
    if isinstance(mesh, Mesh):
        return list(mesh.devices.flat)
    return jax.local_devices()[:1] if isinstance(devices, str) else devices[:1]


def _kind(target: Target) -> str | None:
    kinds = target.device.device_kinds
    return kinds[0] if kinds else None


def _mesh(builder: Any, target: Target | None, devices: Devices) -> Mesh | AbstractMesh:
    if devices == "abstract":
        if target is None:
            message = "an abstract mesh needs a target; give one with --on, such as --on cpu-8"
            raise TargetError(message)
        shape = builder.shape(target.jax_devices, target.slices)
        kinds = (AxisType.Auto,) * len(shape)
        return AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=kinds)
    chosen = jax.devices() if devices == "process" else list(devices)
    if target is not None:
        if len(chosen) < target.jax_devices:
            message = (
                f"target {target.selector} has {target.jax_devices} devices, but this run sees {len(chosen)} "
                f"({chosen[0].platform}); choose a smaller target with --on"
                + (f", or set JAX_NUM_CPU_DEVICES={target.jax_devices}" if target.device.platform == "cpu" else "")
            )
            raise TargetError(message)
        chosen = chosen[: target.jax_devices]
    result: Mesh | AbstractMesh = builder.mesh(chosen, 1 if target is None else target.slices)
    return result
