"""How many cache pages fit beside the weights of a serving pod, and its tokens a second by roofline.

A decoding step reads every weight and every cached key once, and multiplies each weight by as many rows as sequences:
the longer of both is its time. Nothing is compiled, and communication is ignored, so this is a lower bound.
"""

import dataclasses
import math
from typing import Any

import jax
from kanawa.arrays.shardings import abstract_params
from kanawa.arrays.spec import ParamSpec
from kanawa.composition.environment import environment
from kanawa.composition.experiment import Composition
from kanawa.contracts import CausalLM
from kanawa.errors import UsageError
from kanawa.module import Module, param_specs

from kanawa_parallel.plan.memory.arguments import local_bytes
from kanawa_parallel.plan.programs.decode import cast_spec, placed
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
    #: "memory" or "compute": what the step waits for.
    binds: str


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


def serving_room(composition: Composition) -> Room:
    """Returns what fits beside the weights, in the compute dtype, sharded by the composition's strategies.

    Raises UsageError for a model that doesn't decode.
    """
    target, where = composition.target, environment(composition, "abstract")
    model = composition.model if isinstance(composition.model, Module) else composition.config.model.build()
    if target is None or not isinstance(model, CausalLM):
        message = f"{composition.name} is a {type(model).__qualname__}, which has no cache to serve from"
        raise UsageError(message)
    plan, mesh = where.plan, where.mesh
    dtype, devices, device = plan.precision.compute, target.jax_devices, target.device
    stored = abstract_params(param_specs(model), plan.param_rules, mesh)
    weights = sum(local_bytes(cast_spec(leaf, dtype)) for leaf in jax.tree.leaves(stored))

    def cache(length: int) -> float:
        spec = model.cache_spec(devices, length, dtype)
        leaves = jax.tree.leaves(spec, is_leaf=lambda node: isinstance(node, ParamSpec))
        rules = plan.activation_rules
        # As many rows as devices: those that batches are spread over get their share whatever the mesh is.
        held = (placed(one.shape, one.axes, one.dtype, rules, mesh, "cache") for one in leaves)
        return sum(map(local_bytes, held)) / devices

    # A ring or a state stops growing: between these lengths what grows does so evenly.
    short, long = CONTEXTS[-1], 2 * CONTEXTS[-1]
    token = (cache(long) - cache(short)) / (long - short)
    fixed = max(0.0, cache(short) - token * short)
    limit = device.memory_bytes // device.jax_devices_per_chip
    free = max(0.0, limit * (1 - RESERVED_SHARE) - weights)
    pages = math.floor(free / (token * PAGE_SIZE)) if token else None
    share = device.jax_devices_per_chip
    peak = device.peak_flops.get(dtype) or max(device.peak_flops.values())
    rows = []
    for context in CONTEXTS:
        flops = model.flops_per_token(float(context))
        for batch in BATCHES:
            cached = batch * cache(context)
            memory = (weights + cached) / (device.memory_bandwidth / share)
            compute = batch * flops / devices / (peak / share)
            step = max(memory, compute)
            binds = "memory" if memory >= compute else "compute"
            rows.append(Row(batch, context, cached <= free, step, batch / step, binds))
    return Room(weights, limit, int(free), PAGE_SIZE, token * PAGE_SIZE * devices, fixed * devices, pages, tuple(rows))


def render_room(room: dict[str, Any]) -> str:
    """Returns a room as text for a person: pages, and the steps of each batch and context that fit."""
    pages = room["cache_pages"]
    tokens = "caches that don't grow" if pages is None else f"{pages:,} pages of {room['page_size']} tokens"
    head = (
        f"\nserving: {format_bytes(room['weights_per_device_bytes'])} of weights a device leave {tokens} "
        f"({format_bytes(room['cache_per_device_bytes'])} a device); by roofline, without communication:"
    )
    cells = {"step_seconds": format_seconds, "tokens_per_second": format_count}
    columns = ("context", "batch", "step_seconds", "tokens_per_second", "binds")
    rows = [[cells.get(name, str)(row[name]) for name in columns] for row in room["rows"] if row["fits"]]
    if not rows:
        return f"{head} nothing fits; shard the weights over more devices"
    return head + format_table("decoding", ("context", "batch", "step", "tokens/s", "binds"), rows)
