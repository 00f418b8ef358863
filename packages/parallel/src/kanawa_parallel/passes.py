"""How a batch passes through a workload: what cuts it into parts, and how long pipeline stages wait."""

from collections.abc import Iterator

import kanawa as kn
from kanawa.contracts import GradientStrategy, Stack


def batch_cuts(config: kn.Config, model: kn.Module) -> list[tuple[str, int]]:
    """Returns (config path, parts) of every field that cuts a training batch, the gradient strategy's first."""
    cuts = [
        (f"{path}.{field}", parts) for path, strategy in _strategies(config) for field, parts in strategy.cuts().items()
    ]
    if any(strategy.replaces_stack for _, strategy in _strategies(config)):
        return cuts
    return cuts + [
        (f"{path}.{field}", parts) for path, stack in stacks_of(model) for field, parts in stack.cuts().items()
    ]


def idle_share(config: kn.Config, model: kn.Module, stages: int) -> float:
    """Returns the part of a pipelined step's ticks in which a stage has nothing to do; 0 without stages.

    Loops over ticks run idle ones as if they were work, so the share is of the time that the loops take.
    """
    if stages <= 1:
        return 0.0
    for _, strategy in _strategies(config):
        if strategy.replaces_stack:
            return max((strategy.idle_share(stages, stack.config) for _, stack in stacks_of(model)), default=0.0)
    return max((stack.idle_share(stages) for _, stack in stacks_of(model)), default=0.0)


def layers_of_stages(model: kn.Module, stages: int) -> tuple[int, ...]:
    """Returns the layers of each stage of a model's pipelined stack; () without stages or such a stack."""
    each = (stack.layers_of_stages(stages) for _, stack in stacks_of(model)) if stages > 1 else iter(())
    return next(filter(None, each), ())


def stacks_of(model: kn.Module) -> Iterator[tuple[str, Stack]]:
    """Yields (config path, stack) of every stack in a model, outer ones first."""

    def walk(module: kn.Module, path: str) -> Iterator[tuple[str, Stack]]:
        if isinstance(module, Stack):
            yield path, module
        for name, child in module.children.items():
            yield from walk(child, f"{path}.{name}")

    yield from walk(model, "model")


def _strategies(config: kn.Config) -> list[tuple[str, GradientStrategy]]:
    """Returns the gradient strategies of a workload with their config paths, wherever it keeps them."""
    return [(path, node.build()) for path, node in config.walk() if isinstance(node, GradientStrategy.Config)]
