"""Modifiers that decide how a workload is spread, in what precision it runs, and where its optimizer's state lies."""

from collections.abc import Iterable

import kanawa as kn
from kanawa.contracts import DeviceMesh, ExecutionConfig, Strategy

from kanawa_parallel.strategies.data import DataParallel
from kanawa_parallel.strategies.expert import ExpertParallel
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel


class Mesh(kn.Modifier):
    """`mesh`: sets the mesh, and the strategies that its axes call for unless the config has some of its own."""

    class Config(kn.Modifier.Config):
        axes: dict[str, int] = {}
        dcn_axes: dict[str, int] = {}

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `execution.mesh` and `execution.strategies` set."""
        own = self.config
        strategies = _replaced(cfg.execution, strategies_for({*own.axes, *own.dcn_axes}))
        cfg.execution.set(mesh=DeviceMesh.Config(axes=own.axes, dcn_axes=own.dcn_axes), strategies=strategies)
        return cfg


def _replaced(execution: ExecutionConfig, wanted: tuple[Strategy.Config, ...]) -> tuple[Strategy.Config, ...]:
    """Returns `wanted` in place of what an earlier mesh, such as a rule's, had chosen; a user's own choice stays."""
    chosen, mesh = tuple(execution.strategies), execution.mesh
    derived = () if mesh is None else strategies_for({*mesh.axes, *mesh.dcn_axes})
    # Strategies that a mesh brought are all there, as it brought them; if one is missing or there never was a mesh, a
    # user chose.
    if any(strategy not in chosen for strategy in derived) or (chosen and not derived):
        return chosen
    return (*(strategy for strategy in chosen if strategy not in derived), *wanted)


def strategies_for(axes: Iterable[str]) -> tuple[Strategy.Config, ...]:
    """Returns the strategies that give each of these mesh axes its use, in an order in which they compose.

    Experts come along on any mesh: each shard then routes its own tokens. `context` means the ring, and
    `stage` is the modifier `pipeline`'s business.
    """
    named = set(axes)
    by_axis: tuple[tuple[str, Strategy.Config], ...] = (
        ("tensor", TensorParallel.Config()),
        ("context", RingAttention.Config()),
        ("fsdp", FSDP.Config()),
    )
    called_for = [strategy for axis, strategy in by_axis if axis in named]
    return (*called_for, ExpertParallel.Config(), *([] if "fsdp" in named else [DataParallel.Config()]))


class Compute(kn.Modifier):
    """`compute`: sets the dtype layers compute in; parameters, norms, router and loss stay fp32."""

    class Config(kn.Modifier.Config):
        dtype: kn.FloatDtype = "bfloat16"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `precision.compute` set."""
        cfg.precision.set(compute=self.config.dtype)
        return cfg


class OffloadOptimizer(kn.Modifier):
    """`offload-optimizer`: keeps optimizer state in pinned host memory; each step fetches it and sends it back.

    Two thirds of a training state leave the devices between steps (ZeRO-Offload). On a platform without that memory
    kind, placing or compiling fails and names it.
    """

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `execution.optimizer_memory` set."""
        cfg.execution.set(optimizer_memory="pinned_host")
        return cfg
