"""A pipeline's step from the program of one stage: one microbatch through its layers, as often as the schedule runs it.

Every schedule is taken at its own best: microbatches follow each other, transfers between stages run beside compute,
gradients are summed over replicas once a step, beside the last microbatch.
"""

import dataclasses
import math
import re

from kanawa.composition.experiment import Composition
from kanawa.contracts import DeviceMesh, GradientStrategy

from kanawa_parallel.pipeline.stack import PipelinedStack
from kanawa_parallel.pipeline.timetable import idle_fraction
from kanawa_parallel.plan.cost.work import Seconds, Sent, Work
from kanawa_parallel.plan.quick.buffers import Buffer, Memory
from kanawa_parallel.plan.quick.roofline import Rates, Roofline
from kanawa_parallel.plan.quick.walk import Walked
from kanawa_parallel.strategies.pipeline import Pipeline

_STAGE = "stage"
#: Axes over which a step sums gradients once, whatever its microbatches.
_REPLICAS = frozenset(("replica", "data", "context"))
_SUMS = ("all-reduce", "reduce-scatter")


@dataclasses.dataclass(frozen=True)
class OneStage:
    """The composition of the stage with the most layers, on its own devices, for one microbatch."""

    composition: Composition
    stack: str
    stages: int
    microbatches: int
    layers: int
    #: The places of the largest stage: an empty one costs as much as a layer.
    layers_here: int
    #: Whether a gradient strategy runs the stages: it recomputes them, and saves layers' values of one microbatch.
    recomputes: bool = False
    #: Its share of idle ticks, where layers fill all stages.
    idle_share: float = 0.0

    #: Whether all stages share embedding and head by vocabulary.
    shares_ends: bool = False

    @property
    def idle_ticks(self) -> float:
        """The ticks that a stage waits, in ticks of work."""
        return self.microbatches * self.idle_share / (1 - self.idle_share)


@dataclasses.dataclass(frozen=True)
class PipelineTimes:
    """A pipeline's step, in the form of a Roofline: `runs` times one microbatch through a stage, `alone`."""

    alone: Roofline
    walked: Walked
    work: list[Work]
    sent: list[Sent]
    seconds: Seconds
    runs: float


@dataclasses.dataclass(frozen=True)
class PipelineMemory:
    """A stage's temporaries at their fullest: what is saved of a microbatch is there for each that is under way."""

    peak: float
    at_peak: list[Buffer]
    under_way: int = 1


def one_stage(composition: Composition) -> OneStage | None:
    """Returns the stage of a pipelined composition; None for any other."""
    mesh: DeviceMesh.Config | None = getattr(composition.config.execution, "mesh", None)
    found = [(path, node) for path, node in composition.config.walk() if isinstance(node, PipelinedStack.Config)]
    stages = 1 if mesh is None else mesh.axes.get(_STAGE, 1) * mesh.dcn_axes.get(_STAGE, 1)
    if mesh is None or stages < 2 or len(found) != 1:
        return None
    (path, node), target, shape = found[0], composition.required_target(), composition.config.batch_shape()
    if shape is None:
        return None
    config = composition.config.clone()
    places = node.places(stages)
    here = places.per_run * places.rounds
    config.get(path).set(num_layers=here, microbatches=1, rounds=1, layers_of_runs=())
    full = node.clone()
    full.set(num_layers=places.runs, layers_of_runs=())
    microbatches, recomputes = node.microbatches, False
    idle = idle_fraction(full.places(stages), microbatches)
    for at, each in composition.config.walk():
        if isinstance(each, GradientStrategy.Config) and (strategy := each.build()).replaces_stack:
            microbatches, recomputes = math.prod(strategy.cuts().values()), True
            idle = strategy.idle_share(stages, full)
            config.get(at).set(**dict.fromkeys(strategy.cuts(), 1))
    config.set_path(shape.rows_path, shape.rows // microbatches)
    within = {
        field: {axis: size for axis, size in getattr(mesh, field).items() if axis != _STAGE}
        for field in ("axes", "dcn_axes")
    }
    within["axes"] = within["axes"] or {"data": 1}
    config.execution.mesh.set(**within)
    slices = target.slices // mesh.dcn_axes.get(_STAGE, 1)
    devices = dataclasses.replace(
        target,
        chips=max(1, target.chips // stages),
        jax_devices=target.jax_devices // stages,
        hosts=max(1, target.hosts // stages),
        slices=slices,
        topology="",
    )
    config.freeze()
    alone = dataclasses.replace(composition, config=config, target=devices, model=config.model.build())
    name = path.rpartition(".")[2]
    shared = any(isinstance(s, Pipeline.Config) and s.split_vocab for s in config.execution.strategies)
    return OneStage(alone, name, stages, microbatches, node.num_layers, here, recomputes, idle, shared)


def pipeline_times(stage: OneStage, walked: Walked, memory: Memory, rates: Rates) -> PipelineTimes:
    """Returns the time of a whole step, from one microbatch through one stage."""
    whole = Roofline(walked, memory, rates)
    sums = [item for item in whole.sent if item.kind in _SUMS and item.axes and _REPLICAS.issuperset(item.axes)]
    apart = Roofline(walked, memory, dataclasses.replace(rates, deferred=_REPLICAS))
    tick, ends, once = Seconds(), Seconds(), Seconds()
    for path, seconds in apart.by_path:
        (tick if re.search(rf"\b{stage.stack}\b", path) else ends if re.search(r"[a-z]", path) else once).add(seconds)
    # Where stages don't share embedding and head and layers don't divide, the stages with fewer of them hold both.
    even = stage.layers % stage.stages == 0
    share = (stage.layers * tick.total / stage.layers_here + ends.total) / stage.stages
    a_microbatch = tick.total + ends.total if even else max(tick.total, share)
    if stage.shares_ends:
        a_microbatch = tick.total + ends.total / stage.stages
    runs = stage.microbatches + stage.idle_ticks
    total = Seconds()
    total.add(tick, runs)
    # The idle ticks have no ends.
    total.add(ends, stage.microbatches * max(0.0, a_microbatch - tick.total) / ends.total if ends.total else 0.0)
    total.add(once)
    for item in sums:
        total.expose(("+".join(item.axes), item.link), item.seconds * max(0.0, 1 - tick.total / _seconds(sums)))
    work = [_times(each, 1 if not re.search(r"[a-z]", each.path) else stage.microbatches) for each in apart.work]
    sent = [_sent_times(each, stage.microbatches) for each in apart.sent] + sums
    return PipelineTimes(apart, walked, work, sent, total, runs)


def pipeline_memory(stage: OneStage, memory: Memory) -> PipelineMemory:
    """Returns a stage's memory with what is saved of every microbatch under way: as many as there are stages."""
    under_way = 1 if stage.recomputes else min(stage.microbatches, stage.stages)
    held = [
        dataclasses.replace(buffer, bytes=buffer.bytes * under_way) if buffer.stacked else buffer
        for buffer in memory.at_peak
    ]
    return PipelineMemory(sum(buffer.bytes for buffer in held), held, under_way)


def _seconds(sums: list[Sent]) -> float:
    return sum(item.seconds for item in sums) or 1.0


def _times(work: Work, count: float) -> Work:
    return dataclasses.replace(
        work,
        runs=work.runs * count,
        flops=work.flops * count,
        bytes=work.bytes * count,
        seconds=work.seconds * count,
        cycles=work.cycles * count,
    )


def _sent_times(sent: Sent, count: float) -> Sent:
    return dataclasses.replace(
        sent,
        runs=sent.runs * count,
        bytes=sent.bytes * count,
        seconds=sent.seconds * count,
        exposed_seconds=sent.exposed_seconds * count,
    )
