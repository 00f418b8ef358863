"""A mixture's experts over shards: tokens stay on theirs, each shard holds a part of the experts, rows travel."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import kanawa as kn
from jax.sharding import PartitionSpec
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign, misfits, partition, resolve
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import Distributed, TokenDispatcher
from kanawa.module import current_context, param_specs

from kanawa_parallel.experts.exchange import Experts, through_shards


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
