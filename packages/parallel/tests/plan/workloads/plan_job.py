"""A workload of core code alone whose step compiles in a second, and the devices it is planned for."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.shardings import abstract_params, array_sharding
from kanawa.contracts import (
    BATCH_AXES,
    Batch,
    BatchShape,
    Environment,
    GradientStrategy,
    Model,
    ModelLoss,
    Program,
    Workload,
)
from kanawa.errors import ConfigError
from kanawa.module import param_specs
from kanawa.plugins import Calibration, DeviceSpec, FittedStep, MeshRule, PublishedStep, hookimpl
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.pipeline.stack import PipelinedStack
from stacked_model import StackedLM, SumBlock

LAYERS, WIDTH, VOCAB, ROWS, LENGTH = 4, 16, 32, 24, 8
#: A training pass, of each token: three times a forward's matmuls.
FLOPS_PER_TOKEN = 3 * 2 * (LAYERS * WIDTH**2 + VOCAB * WIDTH)


class CountedBlock(SumBlock):
    """Says what its matmul costs."""

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs for each number of the kernel."""
        del context_length
        return 2 * self.config.input_dim**2


class CountedLM(StackedLM):
    """Says what its head costs besides its layers."""

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the layers' and the head's."""
        return super().flops_per_token(context_length) + 2 * self.config.vocab_size * self.config.input_dim


class State(NamedTuple):
    """Parameters, and one momentum each."""

    params: Any
    opt: Any


class Job(Workload):
    """Momentum descent on a stacked model; refuses eight devices, as a program may."""

    class Config(Workload.Config):
        model: Model.Config = CountedLM.Config(
            vocab_size=VOCAB,
            input_dim=WIDTH,
            stack=PipelinedStack.Config(num_layers=LAYERS, layer=CountedBlock.Config()),
        )
        gradients: GradientStrategy.Config = Accumulate.Config(microbatches=1)
        batch_size: int = ROWS
        length: int = LENGTH

        def batch_shape(self) -> BatchShape:
            """Returns what the fields say."""
            return BatchShape(self.batch_size, self.length, length_path="length")

    def programs(self, environment: Environment) -> Mapping[str, Program]:
        """Returns `train_step`."""
        rules, mesh = environment.plan.param_rules, environment.mesh
        if mesh is not None and mesh.size == 8:
            message = "eight devices are one too many"
            raise ConfigError(message)
        shape = self.config.batch_shape()[:2]
        sharding = None
        if mesh is not None:
            sharding = array_sharding(shape, BATCH_AXES.input_ids, environment.plan.activation_rules, mesh, "rows")
        ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
        weights = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        params = abstract_params(param_specs(self.model), rules, mesh)
        state, batch = State(params, params), Batch(ids, ids, None, None, weights)
        out = None if mesh is None else (jax.tree.map(lambda leaf: leaf.sharding, state), None)
        return {"train_step": Program("train_step", self.train_step, (state, batch), (0,), out, environment)}

    def train_step(self, state: State, batch: Batch) -> tuple[State, Any]:
        """Returns the state after one update, and the outputs with the kernels that were used."""
        strategy = self.config.gradients.build()
        grads, outputs = strategy.gradients(ModelLoss(self.model), state.params, {}, batch, jax.random.key(0))
        opt = jax.tree.map(lambda m, g: 0.9 * m + g, state.opt, grads)
        return State(jax.tree.map(lambda p, m: p - 0.1 * m, state.params, opt), opt), outputs


def job() -> Job.Config:
    """Returns the experiment."""
    return Job.Config()


def box(name: str, **figures: Any) -> DeviceSpec:
    """Returns a device that this processor stands for: its programs are compiled by the CPU's compiler."""
    defaults: dict[str, Any] = {
        "platform": "cpu",
        "peak_flops": {"bfloat16": 1e12, "float32": 1e11},
        "memory_bytes": 2**30,
        "memory_bandwidth": 1e11,
        "link_bandwidth": 1e10,
        "network_bandwidth": 1e9,
        "chips_per_host": 8,
        "domain_chips": 8,
        "link_name": "wire",
        "exact_float32": True,
        "source": "made for tests",
    }
    return DeviceSpec(name=name, **{**defaults, **figures})


@hookimpl
def kanawa_device_specs() -> list[DeviceSpec]:
    """Returns a box with enough memory, one with too little, one for which there is no compiler."""
    return [
        box("box"),
        box("tight", memory_bytes=24_000),
        box("slow", link_latency_seconds=1e-3),
        box("distant", platform="abacus"),
    ]


@hookimpl
def kanawa_topology(target: Any) -> list[jax.Device] | None:
    """Returns this process's devices for all but the distant one: its compiler is theirs."""
    return None if target.device.platform == "abacus" else jax.devices()[: target.jax_devices]


@hookimpl
def kanawa_mesh_rules() -> list[MeshRule]:
    """Returns the rule of the platform that nobody compiles for."""
    return [MeshRule(name="abacus", platform="abacus", mesh={"fsdp": -1})]


@hookimpl
def kanawa_published_steps() -> list[PublishedStep]:
    """Returns what somebody published of the job."""
    return [PublishedStep(experiment="plan-job", target="box-4", seconds=0.5, source="a paper of straw")]


@hookimpl
def kanawa_calibrations() -> list[Calibration]:
    """Returns what the slow box reaches, with a compiler of long ago and with one that is to come."""
    step = FittedStep(
        workload="a job",
        target="slow-4",
        seconds=1.0,
        rounding_seconds=0.05,
        planned_seconds=1.02,
        held_out_seconds=1.05,
        source="a slow day",
    )
    old = Calibration(
        compiler="jaxlib 0.1.0",
        devices=("slow",),
        compute_share=0.25,
        memory_share=0.25,
        interval=(0.9, 1.2),
        steps=(step,),
        uncalibrated=("wire",),
    )
    return [old, dataclasses.replace(old, compiler="jaxlib 7.0.0", compute_share=0.5, memory_share=0.5)]
