"""How many cache pages fit beside the weights of a serving pod, and its tokens a second by roofline.

A decoding step reads every weight and every cached key once, and multiplies each weight by as many rows as sequences:
the longer of both, and the sums over devices in between, are its time. Nothing is compiled: this is a lower bound.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.arrays.shardings import abstract_params
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.contracts import CausalLM
from kanawa.errors import UsageError
from kanawa.module import Module, param_specs

from kanawa_parallel.cost_terms import sent_bytes
from kanawa_parallel.plan.cost.calibration import calibration_for
from kanawa_parallel.plan.cost.machine import Machine
from kanawa_parallel.plan.memory.arguments import local_bytes
from kanawa_parallel.plan.programs.decode import cast_spec, placed
from kanawa_parallel.plan.quick.estimate import target_links
from kanawa_parallel.plan.quick.layout import count_parts
from kanawa_parallel.plan.quick.roofline import Rates
from kanawa_parallel.plan.report.assemble import installed_versions
from kanawa_parallel.plan.report.units import format_bytes, format_count, format_seconds
from kanawa_parallel.plan.show.render import format_table

#: Tokens of a page, as the serving engine's.
PAGE_SIZE = 16
#: The share of a device's memory that is reserved for a step's temporaries and for the runtime.
RESERVED_SHARE = 0.1
BATCHES = (1, 8, 32, 128, 512)
CONTEXTS = (1024, 4096, 16384, 65536)


@dataclasses.dataclass(frozen=True)
class Row:
    """A decoding step of `batch` sequences that have `context` tokens each, on the whole pod."""

    batch: int
    context: int
    fits: bool
    step_seconds: float
    tokens_per_second: float
    #: "memory" or "compute": what the step waits for, apart from communication.
    binds: str
    communication_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Room:
    """Bytes on each device, pages and tokens on all of them; `sequence_bytes` are what a sequence needs at any length.

    `cache_pages` is None for a model whose caches don't grow.
    """

    weights_per_device_bytes: int
    memory_limit_bytes: int
    cache_per_device_bytes: int
    page_size: int
    page_bytes: float
    sequence_bytes: float
    cache_pages: int | None
    rows: tuple[Row, ...]


class Decoding:
    """What a decoding step of a composition reads, computes and sends on each device, as the engine spreads it.

    Weights are in the compute dtype, sharded by the composition's strategies. Rows and positions are on all devices.
    """

    def __init__(self, composition: Composition) -> None:
        """Lays out weights; raises UsageError for a model that doesn't decode."""
        self.target, where = composition.required_target(), environment(composition, "abstract")
        model = composition.model if isinstance(composition.model, Module) else composition.config.model.build()
        if not isinstance(model, CausalLM):
            message = f"{composition.name} is a {type(model).__qualname__}, which has no cache to serve from"
            raise UsageError(message)
        self.model, self.mesh = model, where.mesh
        self.dtype, self._rules = where.plan.precision.compute, where.plan.activation_rules
        device = self.target.device
        stored = abstract_params(param_specs(model), where.plan.param_rules, self.mesh)
        leaves = {path: cast_spec(leaf, self.dtype) for path, leaf in flatten_paths(stored).items()}
        self.weights = sum(map(local_bytes, leaves.values()))
        self._shape = {} if self.mesh is None else dict(self.mesh.shape)
        self._sums, gathered = self._needed(leaves)
        machine = Machine(
            device,
            target_links(device, self.target),
            calibration=calibration_for(device, installed_versions(device)).calibration,
        )
        self._rates, self._gathered = Rates(machine), gathered
        self.limit = device.memory_bytes // device.jax_devices_per_chip

    @property
    def free(self) -> float:
        """Bytes of a device for caches: what weights and the reserve leave."""
        return max(0.0, self.limit * (1 - RESERVED_SHARE) - self.weights)

    @functools.cache  # noqa: B019 - lives as long as one plan
    def cache(self, length: int) -> float:
        """Returns a device's bytes of one sequence's cache of this length."""
        spec = self.model.cache_spec(1, length, self.dtype)
        leaves = jax.tree.leaves(spec, is_leaf=lambda node: isinstance(node, ParamSpec))
        rules = tuple(rule for rule in self._rules if rule[0] not in ("batch", "length"))
        return float(
            sum(local_bytes(placed(one.shape, one.axes, one.dtype, rules, self.mesh, "cache")) for one in leaves)
        )

    def row(self, batch: int, context: int) -> Row:
        """Returns the step of so many sequences of so many tokens."""
        device = self.target.device
        cached = batch * self.cache(context)
        peak = device.peak_flops.get(self.dtype) or max(device.peak_flops.values())
        split = math.prod(self._shape.get(axis, 1) for axis in ("tensor", "expert", "stage"))
        memory = (self.weights + cached) / (device.memory_bandwidth / device.jax_devices_per_chip)
        compute = batch * self.model.flops_per_token(float(context)) / split / (peak / device.jax_devices_per_chip)
        sent = self._sending(batch)
        step = max(memory, compute) + sent
        binds = "memory" if memory >= compute else "compute"
        return Row(batch, context, cached <= self.free, step, batch / step, binds, sent)

    def _needed(self, leaves: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[list[tuple[int, tuple[str, ...]]], float]:
        """Returns the sums after matmuls of split inputs, as (widths of all layers, axes), and the bytes gathered."""
        sums: list[tuple[int, tuple[str, ...]]] = []
        gathered = 0.0
        for path, spec in flatten_paths(param_specs(self.model)).items():
            leaf = leaves.get(path)
            named = getattr(getattr(leaf, "sharding", None), "spec", ())
            if leaf is None or not isinstance(spec, ParamSpec):
                continue
            split = {axis: names for axis, names in zip(spec.axes, named, strict=False) if names}
            if any("fsdp" in names for names in split.values()):
                gathered += local_bytes(leaf) * (self._shape["fsdp"] - 1)
            axes = tuple(name for name in ("expert", "tensor") if any(name in names for names in split.values()))
            if axes and spec.axes[-1] == "embed" and "embed" not in split and len(spec.axes) > 1:
                layers = spec.shape[spec.axes.index("layers")] if "layers" in spec.axes else 1
                sums.append((layers * spec.shape[-1], axes))
        return sums, gathered

    def _sending(self, batch: int) -> float:
        """Returns the seconds of collectives, which a step of few rows waits for."""
        links = self._rates.machine.reached_links
        seconds = 0.0
        for width, axes in self._sums:
            members = count_parts(axes, self._shape)
            sent = sent_bytes("all-reduce", batch * width * jnp.dtype(self.dtype).itemsize, members)
            layers = max(1, width // self.model.config.input_dim)
            seconds += links.seconds(sent, self._rates.link(axes, self._shape)) if members > 1 else 0.0
            seconds += (layers - 1) * links.device.link_latency_seconds if members > 1 else 0.0
        if self._gathered:
            seconds += links.seconds(self._gathered, self._rates.link(("fsdp",), self._shape))
        return seconds


def serving_room(composition: Composition) -> Room:
    """Returns what fits beside the weights, in the compute dtype, sharded by the composition's strategies.

    Raises UsageError for a model that doesn't decode.
    """
    decoding = Decoding(composition)
    # A ring or a state stops growing: between these lengths what grows does so evenly.
    short, long = CONTEXTS[-1], 2 * CONTEXTS[-1]
    token = (decoding.cache(long) - decoding.cache(short)) / (long - short)
    fixed = max(0.0, decoding.cache(short) - token * short)
    free, devices = decoding.free, decoding.target.jax_devices
    pages = math.floor(free / (token * PAGE_SIZE)) if token else None
    rows = tuple(decoding.row(batch, context) for context in CONTEXTS for batch in BATCHES)
    page = token * PAGE_SIZE * devices
    return Room(decoding.weights, decoding.limit, int(free), PAGE_SIZE, page, fixed * devices, pages, rows)


def render_room(room: dict[str, Any]) -> str:
    """Returns a room as text for a person: pages, and the steps of each batch and context that fit."""
    pages = room["cache_pages"]
    tokens = "caches that don't grow" if pages is None else f"{pages:,} pages of {room['page_size']} tokens"
    head = (
        f"\nserving: {format_bytes(room['weights_per_device_bytes'])} of weights a device leave {tokens} "
        f"({format_bytes(room['cache_per_device_bytes'])} a device); by roofline:"
    )
    cells = {"step_seconds": format_seconds, "tokens_per_second": format_count}
    columns = ("context", "batch", "step_seconds", "tokens_per_second", "binds")
    rows = [[cells.get(name, str)(row[name]) for name in columns] for row in room["rows"] if row["fits"]]
    if not rows:
        return f"{head} nothing fits; shard the weights over more devices"
    return head + format_table("decoding", ("context", "batch", "step", "tokens/s", "binds"), rows)
