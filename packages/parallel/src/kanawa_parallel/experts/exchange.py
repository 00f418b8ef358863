"""A mixture's experts over shards: tokens stay on theirs, each shard holds a part of the experts, rows travel.

Rows go to the shards of their experts and come back: two token exchanges around the experts.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import kanawa as kn
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float, Int
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import Assignment, assign, assign_param, misfits, partition
from kanawa.arrays.stored_shard import StoredShard
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import Distributed, TokenDispatcher
from kanawa.kernels.platform import current_platform
from kanawa.kernels.token_exchange import token_exchange
from kanawa.module import current_context, param_specs
from kanawa.plugins.devices import device_spec_of_kind

from kanawa_parallel.cost_terms import UNLIKELY, filled
from kanawa_parallel.experts.cheaper import Traffic

#: (rows grouped by expert, rows of each expert) to rows.
Experts = Callable[[Float[Array, "rows E"], Int[Array, " experts"]], Float[Array, "rows E"]]


#: Rows that a shard has room for in one round, of an even load's, where none may be dropped.
_SLACK = 1.5


def through_shards(experts: Experts, axis: str, capacity_factor: float | None) -> Experts:
    """Returns a function like `experts`, of rows grouped by all experts; `experts` sees those of its shard's own.

    Call it inside shard_map over `axis`. Shards hold equal, consecutive parts of the experts. Rows past the room that a
    shard has go in further rounds, which run only where a shard needs them; with a capacity they are dropped.
    """

    def spread(rows: Float[Array, "rows E"], sizes: Int[Array, " experts"]) -> Float[Array, "rows E"]:
        shards = jax.lax.axis_size(axis)
        room = _room(rows.shape[0], shards, capacity_factor or _SLACK)
        trip = _Trip(experts, axis, room, sizes.reshape(shards, -1))
        out = trip.round(rows, 0)
        if capacity_factor is not None:
            dropped = jnp.sum(sizes) - jnp.sum(trip.going(0))
            weight = jnp.float32(rows.shape[0])
            current_context().module.record("dropped_rows", kn.Mean(dropped.astype(jnp.float32), weight))
            return out
        rounds = math.ceil(rows.shape[0] * shards / room)
        if rounds == 1:
            return out

        def more(rows: Float[Array, "rows E"]) -> Float[Array, "rows E"]:
            def one(total: Float[Array, "rows E"], number: Int[Array, ""]) -> tuple[Float[Array, "rows E"], None]:
                added = kn.cond(
                    number * room < trip.most, trip.round, lambda rows, _: jnp.zeros_like(rows), rows, number
                )
                return total + added, None

            total: jax.Array = kn.scan(one, jnp.zeros_like(rows), jnp.arange(1, rounds), remat=True)[0]
            return total

        # One branch around all further rounds: skipped one by one, each would add zeros to every expert's gradient.
        with jax.named_scope(UNLIKELY):
            rest: jax.Array = kn.cond(trip.most > room, more, jnp.zeros_like, rows)
        return out + rest

    return spread


class _Trip:
    """Where this shard's rows stand among all that each shard of their experts receives, a room's worth a round."""

    def __init__(self, experts: Experts, axis: str, room: int, sizes: Int[Array, "shards experts"]) -> None:
        """Exchanges how many rows go from where to where."""
        self.experts, self.axis, self.room, self.sizes = experts, axis, room, sizes
        own = jnp.sum(sizes, axis=1, dtype=jnp.int32)
        sent = jax.lax.all_gather(own, axis)
        #: Of each shard that receives: the rows from shards before this one, and with them those of this one.
        self.begin = (jnp.cumsum(sent, axis=0) - sent)[jax.lax.axis_index(axis)]
        self.ends = jnp.cumsum(own)
        # The same number on every shard of the mesh: weights may be gathered in a further round, over any axis.
        mesh = jax.sharding.get_abstract_mesh()
        manual = tuple(n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Manual)
        self.most = jax.lax.pmax(jnp.max(jnp.sum(sent, axis=0)), manual)
        self.starts = self.ends - own

    def going(self, number: int | Int[Array, ""]) -> Int[Array, "shards experts"]:
        """Returns how many rows of each expert go in this round."""
        ends = self.begin[:, None] + jnp.cumsum(self.sizes, axis=1)
        low = number * self.room
        within = (jnp.clip(x, low, low + self.room) for x in (ends, ends - self.sizes))
        return functools.reduce(jnp.subtract, within).astype(jnp.int32)

    def round(self, rows: Float[Array, "rows E"], number: int | Int[Array, ""]) -> Float[Array, "rows E"]:
        """Returns the rows of one round through their experts, zeros for others."""
        place = jnp.arange(rows.shape[0], dtype=self.ends.dtype)
        shard = jnp.searchsorted(self.ends, place, side="right")
        at = jnp.minimum(shard, self.ends.shape[0] - 1)
        place = place - self.starts[at] + self.begin[at] - number * self.room
        mine = (shard == at) & (place >= 0) & (place < self.room)
        # Those that go come first, in their order.
        order, going = jnp.argsort(~mine, stable=True), self.going(number)
        sent = jnp.sum(going, axis=1, dtype=jnp.int32)
        axis, room = self.axis, self.room
        received, arrived = token_exchange(jnp.take(rows, order, axis=0), sent, output_rows=room, axis_name=axis)
        counts = jax.lax.all_to_all(going, axis, 0, 0, tiled=True)
        # Rows arrive by source and then by expert; a grouped matmul wants them by expert alone. Stable, so
        # that results don't depend on how a backend breaks ties.
        by_expert = jnp.argsort(_expert_of_row(counts, room), stable=True)
        grouped, load = jnp.take(received, by_expert, axis=0), jnp.sum(counts, axis=0, dtype=jnp.int32)
        # Shards receive as many rows as they send, in the mean; grouped matmuls skip the rest of the room.
        with jax.named_scope(filled(rows.shape[0], room)):
            out = self.experts(grouped, load)
        # The inverse permutation: rows stand again where they arrived, which is how their senders know them.
        out = jnp.take(out, jnp.argsort(by_expert), axis=0)
        starts = jnp.cumsum(sent) - sent
        back, _ = token_exchange(out, arrived, output_rows=rows.shape[0], axis_name=axis, receive_offsets=starts)
        return jnp.where(mine[:, None], jnp.take(back, jnp.argsort(order), axis=0), jnp.zeros((), rows.dtype))


def _room(rows: int, shards: int, factor: float) -> int:
    """Returns how many rows a shard may receive in one round: its share times the factor, at most all there are."""
    return min(rows * shards, math.ceil(rows * factor))


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
    beyond are dropped and counted. None never drops: what is beyond goes in further rounds. `exchange` says whether
    rows travel to their experts, or each shard gathers all experts' weights; None takes what is cheaper (`Traffic`).
    """

    operation: ClassVar[str] = "experts"
    name: ClassVar[str] = "over_shards"

    axis: str = "expert"
    capacity_factor: float | None = None
    exchange: bool | None = None

    def through(
        self, dispatcher: TokenDispatcher, experts: kn.Module, x: jax.Array, ids: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """Returns what `TokenDispatcher.through` promises, on any mesh; whole where the tokens don't divide."""
        mesh = {name: size for name, size in auto_mesh_shape().items() if size > 1}
        tokens = _token_spec(x.shape, mesh)
        if tokens is None:
            return dispatcher.on_one_shard(experts, x, ids, weights)
        shards = mesh.get(self.axis, 1)
        exchanges = shards > 1 and self._exchanges(experts, x, ids, tokens, mesh)

        # As they are stored, so that they are cast before they are gathered and their gradients scattered as they are
        # added up: entering whole, fp32 parameters would be gathered, and whole fp32 gradients summed over all shards.
        rules = (("experts", (self.axis,)), *current_plan().param_rules)
        stored = {
            path: assign_param(spec.shape, spec.axes, rules, mesh)
            for path, spec in flatten_paths(param_specs(experts)).items()
        }
        specs = unflatten_paths({path: partition(assigned) for path, assigned in stored.items()})
        held = {self.axis} if exchanges else set[str]()
        whole = {path: tuple(tuple(n for n in names if n not in held) for names in s) for path, s in stored.items()}

        def local(x: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
            if not exchanges:
                return dispatcher.on_one_shard(experts, x, ids, weights)
            spread = through_shards(cast(Experts, experts), self.axis, self.capacity_factor)
            return dispatcher.on_one_shard(spread, x, ids, weights)

        mapped = kn.shard_map(
            local,
            in_specs=(tokens, tokens, tokens),
            out_specs=tokens,
            axis_names=tuple(mesh),
            param_specs={**{name: PartitionSpec() for name in current_context().params}, experts.name: specs},
            prepare=lambda params: {**params, experts.name: _to_gather(params[experts.name], whole)},
        )
        out: jax.Array = mapped(x, ids, weights)
        return out

    def _exchanges(
        self, experts: kn.Module, x: jax.Array, ids: jax.Array, tokens: PartitionSpec, mesh: Mapping[str, int]
    ) -> bool:
        """Returns whether rows travel: as was asked for, always with a capacity, else where that takes less time."""
        if self.exchange is not None or self.capacity_factor is not None:
            return self.exchange is not False
        axes = (name for names in tokens for name in ((names,) if isinstance(names, str) else names or ()))
        rows, itemsize = ids.size // math.prod(mesh[name] for name in axes), x.dtype.itemsize
        numbers = sum(spec.size for spec in flatten_paths(param_specs(experts)).values())
        shards = mesh[self.axis]
        room = _room(rows, shards, _SLACK)
        _, kind = current_platform()
        device = None if kind is None else device_spec_of_kind(kind)
        return Traffic(rows, room, x.shape[-1], itemsize, numbers * itemsize, shards).exchange_is_cheaper(device)


def _to_gather(params: Any, whole: Mapping[str, Assignment]) -> Any:
    """Returns the tree with each parameter as its shard, gathered over the mesh axes in `whole` where it is read."""
    return unflatten_paths({path: StoredShard(x, whole[path]) for path, x in flatten_paths(params).items()})


def _token_spec(shape: tuple[int, ...], mesh: Mapping[str, int]) -> PartitionSpec | None:
    """Returns the split of [..., embed] tokens by the plan's rules; None where there is none or it doesn't divide."""
    axes = ("batch", "length") if len(shape) == 3 else ("batch",)
    assignment = assign(axes, current_plan().activation_rules, mesh)
    if not any(assignment) or misfits(shape[: len(axes)], axes, assignment, mesh):
        return None
    return partition(assignment)
