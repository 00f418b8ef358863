"""Every number in the config of every installed component says which numbers it takes."""

import typing
from collections.abc import Iterator
from typing import Any

from kanawa.config import CallableConfig, Config, Range
from kanawa.plugins import component, host

#: Numbers that anything may be said of: where each is read, it is checked against what it counts.
UNBOUNDED = {
    "kanawa.contracts.device_mesh:DeviceMesh.Config.axes",
    "kanawa.contracts.device_mesh:DeviceMesh.Config.dcn_axes",
    "kanawa.contracts.workload:ExecutionConfig.compiler_options",
    "kanawa.foreign.forms:Permuted.Config.order",
    "kanawa.foreign.names:Joined.axis",
    "kanawa.foreign.names:Sliced.axis",
    "kanawa.foreign.names:Sliced.start",
    "kanawa.foreign.names:Sliced.stop",
    "kanawa_layers.basic.conv:Conv.Config.padding",
    "kanawa_parallel.modifiers:Mesh.Config.axes",
    "kanawa_parallel.modifiers:Mesh.Config.dcn_axes",
    "kanawa_runtime.data.mixture:Mixture.Config.weights",
    "kanawa_runtime.data.mixture:WeightChange.weights",
    "kanawa_runtime.learn.add_group:AddGroup.Config.values",
    "kanawa_runtime.learn.choose:ChooseOptimizer.Config.values",
    "kanawa_runtime.learn.learner_slots:ChooseSchedule.Config.values",
    "kanawa_runtime.rollouts.grpo:GRPO.Config.weights",
    "kanawa_runtime.rollouts.rollouts:Rollouts.weights",
    "kanawa_runtime.services.choose:AddService.Config.values",
}
OURS = {"kanawa", *(name.replace("-", "_") for name in host().installed() if name.startswith("kanawa-"))}


def configs(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from configs(cls)


def bare_numbers(annotation: Any) -> bool:
    """Returns whether an annotation admits an int or a float without a range."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *extra = typing.get_args(annotation)
        return not any(isinstance(each, Range) for each in extra) and bare_numbers(inner)
    return annotation in (int, float) or any(map(bare_numbers, typing.get_args(annotation)))


def test_numbers_have_ranges():
    for state in host().components():
        if state.state.usable:
            component(state.kind, state.key)
    fields = {
        f"{cls.__module__}:{cls.__qualname__}.{name}": field
        for cls in configs(Config)
        if cls.__module__.split(".")[0] in OURS
        for name, field in cls.fields().items()
        if field.owner is cls and not issubclass(cls, CallableConfig)
    }
    bare = {path for path, field in fields.items() if bare_numbers(field.type.annotation)}
    assert len(fields) > 400
    assert not sorted(bare - UNBOUNDED), "declare a range: kn.Size, kn.Positive, Annotated[int, kn.Range(0, 7)]"
    assert not sorted(UNBOUNDED - bare), "these have ranges now"
