"""A mixture's experts over shards: tokens stay on theirs, each shard holds a part of the experts, rows travel.

Rows go to the shards of their experts and come back: two token exchanges around the experts.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import kanawa as kn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign, misfits, partition, resolve
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import Distributed, TokenDispatcher
from kanawa.kernels.token_exchange import token_exchange
from kanawa.module import current_context, param_specs

#: (rows grouped by expert, rows of each expert) to rows.
Experts = Callable[[Float[Array, "rows E"], Int[Array, " experts"]], Float[Array, "rows E"]]


def through_shards(experts: Experts, axis: str, capacity_factor: float | None) -> Experts:
    """Returns a function like `experts`, of rows grouped by all experts; `experts` sees those of its shard's own.

    Call it inside shard_map over `axis`. Shards hold equal, consecutive parts of the experts.
    """

    def spread(rows: Float[Array, "rows E"], sizes: Int[Array, " experts"]) -> Float[Array, "rows E"]:
        shards = jax.lax.axis_size(axis)
        by_shard = sizes.reshape(shards, -1)
        sent = jnp.sum(by_shard, axis=1, dtype=jnp.int32)
        room = _room(rows.shape[0], shards, capacity_factor)
        received, arrived = token_exchange(rows, sent, output_rows=room, axis_name=axis)
        counts = jax.lax.all_to_all(by_shard, axis, 0, 0, tiled=True)
        if capacity_factor is not None:
            within = _within(counts, room)
            dropped = jnp.sum(counts - within).astype(jnp.float32)
            current_context().module.record("dropped_rows", kn.Mean(dropped, jnp.float32(rows.shape[0])))
            counts = within
        # Rows arrive by source and then by expert; a grouped matmul wants them by expert alone. Stable, so
        # that results don't depend on how a backend breaks ties.
        order = jnp.argsort(_expert_of_row(counts, room), stable=True)
        out = experts(jnp.take(received, order, axis=0), jnp.sum(counts, axis=0, dtype=jnp.int32))
        # The inverse permutation: rows stand again where they arrived, which is how their senders know them.
        out = jnp.take(out, jnp.argsort(order), axis=0)
        starts = jnp.cumsum(sent) - sent
        back, _ = token_exchange(out, arrived, output_rows=rows.shape[0], axis_name=axis, receive_offsets=starts)
        return back

    return spread


def _room(rows: int, shards: int, capacity_factor: float | None) -> int:
    """Returns how many rows a shard may receive: all there are, or its share times the factor."""
    # All tokens may choose the experts of one shard, and shapes are static: without a factor there must be room for
    # that.
    every = rows * shards
    return every if capacity_factor is None else min(every, math.ceil(rows * capacity_factor))


def _within(counts: Int[Array, "shards experts"], room: int) -> Int[Array, "shards experts"]:
    """Returns how many rows of each source and expert lie before `room`, in order of arrival."""
    # Flat, [shards, experts] is the order of arrival: by source, then by expert.
    ends = jnp.cumsum(counts.reshape(-1))
    starts = ends - counts.reshape(-1)
    return (jnp.minimum(ends, room) - jnp.minimum(starts, room)).astype(counts.dtype).reshape(counts.shape)


def _expert_of_row(counts: Int[Array, "shards experts"], room: int) -> Int[Array, " room"]:
    """Returns each received row's expert, and one more than the last for room that is left."""
    _, experts = counts.shape
    ends = jnp.cumsum(counts.reshape(-1))
    # Left-over room sorts behind all experts, where sizes that sum to fewer rows leave it out of the matmul.
    group = jnp.searchsorted(ends, jnp.arange(room, dtype=ends.dtype), side="right")
    return jnp.where(group < counts.size, group % experts, experts)


@dataclasses.dataclass(frozen=True)
class ExpertsOverShards(Distributed):
    """Runs dispatch, experts and combine in one shard_map over the whole mesh, around any dispatcher and any experts.

    `axis` holds the experts. `capacity_factor` limits a shard's rows to this multiple of an even load; rows
    beyond are dropped and counted. None never drops, and needs room for every row of all shards.
    """

    operation: ClassVar[str] = "experts"
    name: ClassVar[str] = "over_shards"

    axis: str = "expert"
    capacity_factor: float | None = None

    def through(
        self, dispatcher: TokenDispatcher, experts: kn.Module, x: jax.Array, ids: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Returns what `TokenDispatcher.through` promises, on any mesh; whole where the tokens don't divide."""
        mesh = {name: size for name, size in auto_mesh_shape().items() if size > 1}
        tokens = _token_spec(x.shape, mesh)
        if tokens is None:
            return dispatcher.on_one_shard(experts, x, ids, weights)
        shards = mesh.get(self.axis, 1)

        def local(x: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
            if shards == 1:
                return dispatcher.on_one_shard(experts, x, ids, weights)
            spread = through_shards(cast(Experts, experts), self.axis, self.capacity_factor)
            return dispatcher.on_one_shard(spread, x, ids, weights)

        mapped = kn.shard_map(
            local,
            in_specs=(tokens, tokens, tokens),
            out_specs=tokens,
            axis_names=tuple(mesh),
            param_specs=self._param_specs(experts, mesh),
        )
        out: jax.Array = mapped(x, ids, weights)
        return out

    def _param_specs(self, experts: kn.Module, mesh: Mapping[str, int]) -> dict[str, Any]:
        """Returns how the mixture's parameters enter: experts split over the axis, everything else whole."""
        held = {self.axis: mesh[self.axis]} if self.axis in mesh else {}
        rules = (("experts", (self.axis,)),)
        flat = {path: resolve(spec.axes, rules, held) for path, spec in flatten_paths(param_specs(experts)).items()}
        whole = {name: PartitionSpec() for name in current_context().params}
        return {**whole, experts.name: unflatten_paths(flat)}


def _token_spec(shape: tuple[int, ...], mesh: Mapping[str, int]) -> PartitionSpec | None:
    """Returns the split of [..., embed] tokens by the plan's rules; None where there is none or it doesn't divide."""
    axes = ("batch", "length") if len(shape) == 3 else ("batch",)
    assignment = assign(axes, current_plan().activation_rules, mesh)
    if not any(assignment) or misfits(shape[: len(axes)], axes, assignment, mesh):
        return None
    return partition(assignment)
