"""From a composition to the environment its programs run in: plan, mesh, compiler options."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from sashimono.arrays.plan import ExecutionPlan, KernelPolicy
from sashimono.compose.experiment import Composition
from sashimono.compose.target import Target
from sashimono.contracts import Environment
from sashimono.errors import PluginError, TargetError
from sashimono.plugins import host

Devices = Literal["process", "abstract"] | Sequence[jax.Device]


def environment(composition: Composition, devices: Devices = "process") -> Environment:
    """Returns where the composition's programs run.

    `devices` "process": this process's (all hosts') devices; "abstract": none, enough to trace and lower for the
    target; or a list of devices, such as a compiler's topology.
    """
    cfg, target = composition.config, composition.target
    execution = cfg.execution
    rules = [strategy.build() for strategy in execution.strategies]
    described = target is not None and devices != "process"
    plan = ExecutionPlan(
        param_rules=tuple(rule for s in rules for rule in s.param_rules()),
        activation_rules=tuple(rule for s in rules for rule in s.activation_rules()),
        precision=cfg.precision.precision(),
        kernels=KernelPolicy(tuple(sorted(execution.kernels.items())), execution.require_fused),
        platform=target.device.platform if described else None,
        device_kind=_kind(target) if described else None,
    )
    mesh = None if execution.mesh is None else _mesh(execution.mesh.build(), target, devices)
    return Environment(plan, mesh, _options(target, execution.compiler_options))


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
    found = jax.devices() if devices == "process" else list(devices)
    if target is not None:
        if len(found) < target.jax_devices:
            message = (
                f"target {target.selector} has {target.jax_devices} devices, but this run sees {len(found)} "
                f"({found[0].platform}); choose a smaller target with --on"
                + (f", or set JAX_NUM_CPU_DEVICES={target.jax_devices}" if target.device.platform == "cpu" else "")
            )
            raise TargetError(message)
        found = found[: target.jax_devices]
    return builder.mesh(found, 1 if target is None else target.slices)


def _options(target: Target | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the backends' compiler options with the config's laid over; backends must not contradict each other."""
    options: dict[str, Any] = {}
    givers: dict[str, str] = {}
    if target is not None:
        found = host().collect("sashimono_compiler_options", device=target.device, purpose="train")
        for plugin, contributed in found:
            for name, value in (contributed or {}).items():
                if options.get(name, value) != value and name not in own:
                    message = (
                        f"{givers[name]} sets compiler option {name} to {options[name]!r}, {plugin} to {value!r}; "
                        f'decide with --set execution.compiler_options={{"{name}": …}}'
                    )
                    raise PluginError(message)
                options[name], givers[name] = value, plugin
    return {**options, **own}
