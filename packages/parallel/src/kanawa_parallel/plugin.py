"""Hook implementations of kanawa-parallel; imports only kanawa.plugins and the standard library."""

from typing import Any

from kanawa.plugins import Command, Kind, MeshRule, hookimpl


@hookimpl
def kanawa_kinds() -> list[Kind]:
    """Returns the kind under which the modifier `pipeline` finds its schedules."""
    return [Kind("pipelines", "schedules of a pipeline", instance_of="collections.abc:Callable")]


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verbs `plan` and `profile`."""
    from kanawa_parallel.plan.command import command as plan
    from kanawa_parallel.profile.command import command as profile

    return [plan(), profile()]


@hookimpl
def kanawa_placement(question: Any) -> MeshRule | None:
    """Returns mesh, rematerialisation and microbatches by quick plans, where the shipped rule's plan doesn't fit."""
    if question.purpose == "train":
        from kanawa_parallel.plan.placement.answer import answer
    else:
        from kanawa_parallel.plan.placement.serving import answer
    return answer(question)


@hookimpl
def kanawa_config_checks(config: Any, target: Any, model: Any) -> list[str]:
    """Returns what of a workload doesn't fit its mesh on the target: axes, sizes, strategies."""
    if target is None or model is None:
        return []
    from kanawa.contracts import Workload

    from kanawa_parallel.divisibility import mesh_problems

    if not isinstance(config, Workload.Config):
        return []
    return mesh_problems(config, model, target.jax_devices, target.slices)
