"""Compiler options that backends recommend: collected, tried on the installed compiler; refusals have reasons.

XLA drops and renames options between releases, and one that it doesn't know fails the whole compilation.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kanawa.composition.compile_cache import without_cache
from kanawa.composition.target import Target
from kanawa.errors import PluginError
from kanawa.plugins import host
from kanawa.plugins.devices import lowered_as

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Checked:
    """The options that a compiler takes, and why it refuses the others."""

    accepted: dict[str, Any] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def checked(options: Mapping[str, Any], compile_with: Callable[[dict[str, Any]], object]) -> Checked:
    """Returns which options `compile_with` accepts: it compiles a small program with those options.

    All at once first; only if that fails, one by one. A failure that isn't about options raises as it is.
    """
    if _reason(options, compile_with) is None:
        return Checked(dict(options), {})
    # If it fails without options too, they aren't to blame: that error is raised.
    compile_with({})
    reasons = {name: _reason({name: value}, compile_with) for name, value in options.items()}
    return Checked(
        {name: value for name, value in options.items() if reasons[name] is None},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def recommended(target: Target | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the backends recommend for training on a target, without the options that the config sets itself.

    Raises PluginError where two backends contradict each other.
    """
    options: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    if target is None:
        return options
    for plugin, advised in host().collect("kanawa_compiler_options", device=target.device, purpose="train"):
        for name, value in (advised or {}).items():
            if name in own:
                continue
            if options.get(name, value) != value:
                message = (
                    f"{set_by[name]} sets compiler option {name} to {options[name]!r}, {plugin} to {value!r}; "
                    f'decide with --set execution.compiler_options={{"{name}": …}}'
                )
                raise PluginError(message)
            options[name], set_by[name] = value, plugin
    return options


def accepted_options(options: Mapping[str, Any], devices: Sequence[jax.Device]) -> Checked:
    """Returns which of the options the compiler of these devices takes, found by compiling an empty program.

    `devices` may be a compiler's topology. Each refusal is one warning line.
    """
    if not options:
        return Checked()
    answer = checked(options, empty_program(devices).compile)
    for name, reason in answer.refused.items():
        logger.warning("compiler option %s=%r is left out: %s", name, options[name], reason)
    return answer


def empty_program(devices: Sequence[jax.Device]) -> jax.stages.Lowered:
    """Returns a program that does next to nothing, lowered for the platform of `devices`."""
    mesh = Mesh(np.array(devices), ("all",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec())
    platform = lowered_as(devices[0].platform)
    traced = jax.jit(lambda x: x + 1, in_shardings=sharding).trace(jax.ShapeDtypeStruct((), np.float32))
    lowered: jax.stages.Lowered = traced.lower(lowering_platforms=(platform,))
    return lowered


def _reason(options: Mapping[str, Any], compile_with: Callable[[dict[str, Any]], object]) -> str | None:
    try:
        # From jax 0.12 on a compiler without devices can't read the cache, and warns at every compilation.
        with without_cache():
            compile_with(dict(options))
    except JaxRuntimeError as failure:
        return str(failure).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
    return None
