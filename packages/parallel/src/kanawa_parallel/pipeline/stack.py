"""A stack whose layers live on pipeline stages; without stages in the mesh it is a scanned stack like any other.

Stages are a leading, sharded dimension of parameters and activations: every stage runs the same program (`vmap` over
that dimension), and rolling the activations along it is what sends them on. So all other axes stay with the compiler,
and any other strategy composes. Legend: S stages, M microbatches, R rounds, k places for layers of a stage in one
round.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan, use_plan
from kanawa.arrays.rules import Rules, assign, assign_param, partition
from kanawa.arrays.spec import ParamSpec
from kanawa.arrays.tree import flatten_paths, map_paths
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.errors import ShardingError
from kanawa.module import Loss, Outputs, param_specs
from kanawa.module.context import current_context
from kanawa.module.detached import run_detached

from kanawa_parallel.pipeline.places import Places
from kanawa_parallel.pipeline.timetable import Circles, EarlyBackwards, idle_fraction

_LAYER = "layer"


class PipelinedStack(Stack):
    """`num_layers` copies of one block, stacked in layer order and spread over the mesh's stages.

    A batch passes in `microbatches` parts, each `rounds` times around the stages: one round is GPipe, more are the
    interleaved schedule (a stage then holds every S-th run of layers; parameters are stored in layer order, so each
    step first moves them between stages). Any number of layers is spread as evenly as it can be, or as
    `layers_of_runs` says, S x R numbers in the model's order; where that leaves places empty,
    parameters are stored in S parts of another dimension, and each step moves them to their stages.
    Caches are stacked too and stay on their stage.
    """

    layer: Block
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("microbatches", "rounds", "layers_of_runs", "remat")

        layer: Block.Config = kn.REQUIRED
        microbatches: kn.Size = 1
        rounds: kn.Size = 1
        layers_of_runs: tuple[kn.Size, ...] = ()
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}"})

        def places(self, stages: int) -> Places:
            """Returns where the layers lie on so many stages."""
            counts = self.layers_of_runs if stages > 1 else ()
            return Places(self.num_layers, stages, self.rounds, counts)

    def setup(self) -> None:
        """Declares the stacked layer, at the path every stack uses."""
        cfg = self.config
        self.add_child(_LAYER, cfg.layer, stacked=cfg.num_layers, input_dim=cfg.input_dim)
        self.add_child("remat", cfg.remat)

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream and the extended caches (None in training)."""
        axes, stages = stage_axes()
        if caches is not None:
            return self._cached(x, sequences, caches, stages)
        if stages == 1:
            x, _, outputs = self._run(x, sequences, jnp.arange(self.config.num_layers), None)
            current_context().collector.absorb(outputs.reduce_leading())
            return x, None
        return self._pipelined(x, sequences, stages, axes), None

    def stage(
        self, x: Float[Array, "B T E"], sequences: Sequences, layers: jax.Array, *, even: bool = True
    ) -> Float[Array, "B T E"]:
        """Returns the stream after those layers whose parameters the context holds; outputs are [places, …].

        `layers` are their numbers, int [places]. Unless `even`, one may be -1: the stream passes that place unchanged.
        """
        y: jax.Array
        y, _, outputs = self._run(x, sequences, layers, None, even=even)
        if not even:
            losses = {path: _only_full(layers >= 0, loss) for path, loss in outputs.losses.items()}
            outputs = dataclasses.replace(outputs, losses=losses)
        current_context().collector.absorb(outputs)
        return y

    def _run(
        self, x: Any, sequences: Sequences, layers: jax.Array, caches: Any, *, even: bool = True
    ) -> tuple[Any, Any, Outputs]:
        """Returns the stream, the extended caches, and the outputs of each layer."""
        context = current_context()
        params, state = context.params[_LAYER], context.current_state().get(_LAYER, {})

        def one(before: Any, item: tuple[Any, ...]) -> tuple[Any, tuple[Any, Outputs]]:
            layer_params, layer_state, number, cache = item

            def run(stream: Any) -> Any:
                return self.layer(self.tag("layer_input", stream), sequences, cache)

            (after, cache), outputs = run_detached(
                context,
                run,
                {**context.params, _LAYER: layer_params},
                {**context.current_state(), _LAYER: layer_state},
                context.key,
                (before,),
                {_LAYER: number},
            )
            return after if even else jnp.where(number >= 0, after, before), (cache, outputs)

        # Decoding takes no gradient: there is nothing to recompute for.
        policy = False if self.remat is None or caches is not None else self.remat.policy()
        if policy is not False:
            # Inside a scan the compiler can't merge the two computations, so that the barriers against it would only
            # cost.
            one = jax.checkpoint(one, policy=None if policy is True else policy, prevent_cse=False)
        x, (caches, outputs) = jax.lax.scan(one, x, (params, state, layers, caches))
        return x, caches, outputs

    # --- training --------------------------------------------------------------------------------------------

    def _pipelined(self, x: Any, sequences: Sequences, stages: int, axes: tuple[str, ...]) -> Any:
        cfg = self.config
        context = current_context()
        places = cfg.places(stages)
        circles = Circles(stages, cfg.microbatches, cfg.rounds)
        count, period = circles.microbatches, circles.period
        specs = param_specs(self)[_LAYER]
        params, state = (by_stage(t.get(_LAYER, {}), places, specs) for t in (context.params, context.current_state()))
        rows, facts = split_rows((x, sequences), count)
        here, numbers = jnp.arange(stages), jnp.asarray(places.layers)

        def one_stage(p: Any, s: Any, y: Any, mine: Any, runs: Any, local: Any) -> tuple[Any, Outputs]:
            # `local` is negative while a stage waits to be filled, and too large when it is through: clipped, its idle
            # ticks compute on something that exists, and `collect_ticks` leaves them out.
            turn = jnp.clip(local // period, 0, places.rounds - 1)
            held_params, held_state, layers = (chosen_round(tree, turn) for tree in (p, s, runs))
            key = None if context.key is None else context.key.fold("microbatch", local % period)
            stage = functools.partial(self.stage, even=places.even)
            args = (y, mine, layers)
            return run_detached(context, stage, {_LAYER: held_params}, {_LAYER: held_state}, key, args)

        # Named, so that sharding constraints inside stay valid: each then has one more, leading dimension on the stage
        # axis.
        every = jax.vmap(one_stage, spmd_axis_name=axes if len(axes) > 1 else axes[0])

        def tick(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], Outputs]:
            moving, returned = carry
            # New microbatches enter until all are in; after that what comes back from the last stage goes round again.
            entering = (
                jnp.where(t < count, pick_microbatch(rows, t), pick_microbatch(returned, t % period))
                if places.rounds > 1
                else pick_microbatch(rows, t)
            )
            moving = on_stages(jnp.roll(moving, 1, axis=0).at[0].set(entering))
            local = t - here
            with inside_stages(axes):
                moving, outputs = every(params, state, moving, pick_microbatch(facts, local % period), numbers, local)
            # The first S - 1 ticks write what no microbatch made; each slot is written again before it is read.
            returned = jax.lax.dynamic_update_index_in_dim(returned, moving[-1], (t - stages + 1) % period, 0)
            return (on_stages(moving), returned), outputs

        empty = on_stages(jnp.zeros((stages, *rows.shape[1:]), rows.dtype))
        none = jnp.zeros((period, *rows.shape[1:]), rows.dtype)
        (_, returned), outputs = jax.lax.scan(tick, (empty, none), jnp.arange(circles.ticks))
        context.collector.absorb(collect_ticks(outputs, places, circles))
        return kn.constrain(join_rows(returned[:count]), ("batch", "length", "embed"))

    # --- decoding --------------------------------------------------------------------------------------------

    def _cached(self, x: Any, sequences: Sequences, caches: Any, stages: int) -> tuple[Any, Any]:
        """Stages take turns: in tick t only the t-th run of layers has something to do and keeps its caches."""
        if stages == 1:
            return self._run(x, sequences, jnp.arange(self.config.num_layers), caches)[:2]
        context = current_context()
        places = Places(self.config.num_layers, stages)
        if not places.even:
            message = (
                f"{self.path}: num_layers ({places.num_layers}) is not a multiple of the {stages} stages, and caches "
                "are spread in equal parts; decode with another mesh"
            )
            raise ShardingError(message)
        params, state, held = (
            by_stage(t, places) for t in (context.params[_LAYER], context.current_state().get(_LAYER, {}), caches)
        )
        here = jnp.arange(stages)

        def one_stage(p: Any, s: Any, y: Any, cache: Any, layers: Any) -> Any:
            mine, own, cache, layers = (jax.tree.map(lambda leaf: leaf[0], t) for t in (p, s, cache, layers))
            arguments = (y, sequences, layers, cache)
            (y, cache, _), _ = run_detached(context, self._run, {_LAYER: mine}, {_LAYER: own}, context.key, arguments)
            return y, jax.tree.map(lambda leaf: leaf[None], cache)

        moving = on_stages(jnp.zeros((stages, *x.shape), x.dtype).at[0].set(x))
        every = jax.vmap(one_stage, spmd_axis_name=stage_axes()[0])
        for t in range(stages):
            with inside_stages(stage_axes()[0]):
                moving, extended = every(params, state, moving, held, jnp.asarray(places.layers))
            # vmap runs every stage in every tick; a stage out of its turn has extended its cache by garbage, which is
            # put back.
            mine = here == t
            held = jax.tree.map(
                lambda new, old, m=mine: jnp.where(m.reshape(-1, *[1] * (new.ndim - 1)), new, old), extended, held
            )
            moving = on_stages(jnp.roll(moving, 1, axis=0))
        return moving[0], jax.tree.map(places.join, held)

    @kn.nowrap
    def cuts(self) -> dict[str, int]:
        """Returns the number of microbatches."""
        return {"microbatches": self.config.microbatches}

    @kn.nowrap
    def idle_share(self, stages: int) -> float:
        """Returns the share of places without work: while the pipeline fills and drains, and where no layer lies."""
        return idle_fraction(self.config.places(stages), self.config.microbatches)

    @kn.nowrap
    def layers_of_stages(self, stages: int) -> tuple[int, ...]:
        """Returns the layers of each stage; raises ShardingError where `layers_of_runs` doesn't fit so many."""
        places: Places = self.config.places(stages)
        return places.of_stages

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns one layer's layout, stacked over layers as the parameters are."""
        spec = self.layer.cache_spec(rows, length, dtype)
        return jax.tree.map(
            lambda s: s.stacked(self.config.num_layers), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec)
        )

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters as they are: they stay on their stages."""
        return params


def stage_axes() -> tuple[tuple[str, ...], int]:
    """Returns the mesh axes that hold pipeline stages, and how many stages they make; ((), 1) without any."""
    sizes = auto_mesh_shape()
    (axes,) = assign(("stage",), current_plan().activation_rules, sizes)
    return axes, math.prod(sizes[axis] for axis in axes)


@contextlib.contextmanager
def inside_stages(axes: tuple[str, ...]) -> Iterator[None]:
    """Traces what is mapped over stages: no rule may use their mesh axes a second time."""
    plan = current_plan()

    def without(rules: Rules) -> Rules:
        return tuple((axis, tuple(name for name in names if name not in axes)) for axis, names in rules)

    params, activations = without(plan.param_rules), without(plan.activation_rules)
    with use_plan(dataclasses.replace(plan, param_rules=params, activation_rules=activations)):
        yield


def split_rows(tree: Any, count: int) -> Any:
    """Returns arrays [B, …] as [count, B / count, …]; row r goes to microbatch r mod count.

    Dealing rows out in turn leaves each microbatch spread over the same devices as the batch.
    """

    def split(x: jax.Array) -> jax.Array:
        if x.shape[0] % count:
            message = (
                f"a batch of {x.shape[0]} rows can't be cut into {count} equal microbatches; "
                f"choose microbatches that divide it"
            )
            raise ShardingError(message)
        return x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, tree)


def join_rows(x: jax.Array) -> jax.Array:
    """Undoes `split_rows` for one array."""
    return x.swapaxes(0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def pick_microbatch(tree: Any, index: jax.Array) -> Any:
    """Returns the microbatches of `index` (any shape, clipped to those there are)."""
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0, mode="clip"), tree)


def chosen_round(tree: Any, turn: jax.Array) -> Any:
    """Returns what lies at `turn` of leaves [R, …]: a stage's run of layers of one round."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, turn, keepdims=False), tree)


def by_stage(tree: Any, places: Places, specs: Mapping[str, Any] | None = None) -> Any:
    """Returns arrays [layers, …] as [S, R, k, …], each stage with its runs of layers; `specs` are the parameters'."""
    if specs is None:
        return jax.tree.map(places.split, tree)

    def split(leaf: jax.Array, spec: ParamSpec | None) -> jax.Array:
        stored, elsewhere, moved = _shardings(spec)
        if places.even:
            # Named, because the layout that Shardy (jax 0.10.2) finds for several rounds is one that XLA mixes up.
            return _laid(places.split(leaf), moved)
        return _laid(_laid(places.split(_laid(leaf, stored)), elsewhere), moved)

    flat = flatten_paths(specs)
    return map_paths(lambda path, leaf: split(leaf, flat.get(path)), tree)


def by_layer(tree: Any, places: Places, specs: Mapping[str, Any]) -> Any:
    """Undoes `by_stage` for parameters and their gradients, [S, R, k, …]."""
    if places.even:
        return jax.tree.map(places.join, tree)

    def join(leaf: jax.Array, spec: ParamSpec | None) -> jax.Array:
        stored, elsewhere, moved = _shardings(spec)
        return _laid(places.join(_laid(_laid(leaf, moved), elsewhere)), stored)

    flat = flatten_paths(specs)
    return map_paths(lambda path, leaf: join(leaf, flat.get(path)), tree)


def _shardings(spec: ParamSpec | None) -> tuple[PartitionSpec | None, ...]:
    """Returns how a parameter is laid out: as it is stored, split in places, and moved to its stages.

    Where stages don't divide the layers all three are named, so that a move is one all-to-all over the stages, and what
    is done before and after is local.
    """
    rules, sizes = current_plan().param_rules, auto_mesh_shape()
    if spec is None or not rules or not sizes:
        return None, None, None
    stages = stage_axes()[0]
    stored = assign_param(spec.shape, spec.axes, rules, sizes)
    rest = (tuple(name for name in names if name not in stages) for names in stored[1:])
    return partition(stored), partition(((), (), *stored)), partition((stages, (), (), *rest))


def _laid(leaf: jax.Array, sharding: PartitionSpec | None) -> jax.Array:
    return leaf if sharding is None else jax.lax.with_sharding_constraint(leaf, sharding)


def _only_full(full: jax.Array, loss: Loss) -> Loss:
    """Returns a loss term [k] with nothing in empty places."""
    total, weight = (jnp.where(full, x, 0.0) for x in (loss.total, loss.weight))
    return dataclasses.replace(loss, total=total, weight=weight)


def on_stages(x: jax.Array) -> jax.Array:
    """Returns activations [S, B, T, E] constrained to their stages."""
    return kn.constrain(x, ("stage", "batch", "length", "embed"))


def collect_ticks(outputs: Outputs, places: Places, circles: Circles | EarlyBackwards) -> Outputs:
    """Returns the outputs of all ticks as those of one pass; what had nothing to do doesn't count.

    Each leaf is [ticks, S, k, …]. State is what the last microbatch left, in layer order.
    """
    stage, turn, place = places.of_layers
    micro = np.arange(circles.microbatches)[:, None]
    ticks = circles.tick(turn, micro, stage)
    done: Outputs = jax.tree.map(lambda leaf: leaf[ticks, stage, place], outputs)
    last = {path: x[-1] for path, x in done.state.items()}
    return dataclasses.replace(done.reduce_leading().reduce_leading(), state=last)
