"""A stack whose layers live on pipeline stages; without stages in the mesh it is a scanned stack like any other.

Stages are a leading, sharded dimension of parameters and activations: every stage runs the same program (`vmap` over
that dimension), and rolling the activations along it is what sends them on. So all other axes stay with the compiler,
and any other strategy composes. Legend: S stages, M microbatches, R rounds, k layers of a stage in one round.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float
from kanawa.arrays.constrain import auto_mesh_shape
from kanawa.arrays.plan import current_plan
from kanawa.arrays.rules import assign
from kanawa.contracts import Block, RematPolicy, Sequences, Stack
from kanawa.errors import ShardingError
from kanawa.module import Outputs
from kanawa.module.context import current_context
from kanawa.module.detached import run_detached

_LAYER = "layer"


class PipelinedStack(Stack):
    """`num_layers` copies of one block, stacked in layer order and spread over the mesh's stages.

    A batch passes in `microbatches` parts, each `rounds` times around the stages: one round is GPipe, more are the
    interleaved schedule (a stage then holds every S-th run of layers; parameters are stored in layer order, so each
    step first moves them between stages). Caches are stacked too and stay on their stage.
    """

    layer: Block
    remat: RematPolicy | None

    class Config(Stack.Config):
        PLACEMENT = ("microbatches", "rounds", "remat")

        layer: Block.Config = kn.REQUIRED
        microbatches: kn.Size = 1
        rounds: kn.Size = 1
        remat: RematPolicy.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(children={"layer": "layers.{}"})

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
            return self.stage(x, sequences, jnp.int32(0)), None
        return self._pipelined(x, sequences, stages, axes), None

    def stage(self, x: Float[Array, "B T E"], sequences: Sequences, first: jax.Array) -> Float[Array, "B T E"]:
        """Returns the stream after those layers whose parameters the context holds; `first` is their global index."""
        y: jax.Array = self._run(x, sequences, first, None)[0]
        return y

    def _run(self, x: Any, sequences: Sequences, first: jax.Array, caches: Any) -> tuple[Any, Any]:
        context = current_context()
        params, state = context.params[_LAYER], context.current_state().get(_LAYER, {})
        length = jax.tree.leaves(params)[0].shape[0]

        def one(carry: Any, item: tuple[Any, ...]) -> tuple[Any, tuple[Any, Outputs]]:
            layer_params, layer_state, index, cache = item

            def run(stream: Any) -> Any:
                return self.layer(self.tag("layer_input", stream), sequences, cache)

            (carry, cache), outputs = run_detached(
                context,
                run,
                {**context.params, _LAYER: layer_params},
                {**context.current_state(), _LAYER: layer_state},
                context.key,
                (carry,),
                {_LAYER: first + index},
            )
            return carry, (cache, outputs)

        # Decoding takes no gradient: there is nothing to recompute for.
        policy = False if self.remat is None or caches is not None else self.remat.policy()
        if policy is not False:
            # Inside a scan the compiler can't merge the two computations, so that the barriers against it would only
            # cost.
            one = jax.checkpoint(one, policy=None if policy is True else policy, prevent_cse=False)
        x, (caches, outputs) = jax.lax.scan(one, x, (params, state, jnp.arange(length), caches))
        context.collector.absorb(outputs.reduce_leading())
        return x, caches

    # --- training --------------------------------------------------------------------------------------------

    def _pipelined(self, x: Any, sequences: Sequences, stages: int, axes: tuple[str, ...]) -> Any:
        cfg = self.config
        context = current_context()
        count, rounds = cfg.microbatches, cfg.rounds
        check_schedule(cfg.num_layers, stages, count, rounds, self.path)
        params, state = (by_stage(t.get(_LAYER, {}), stages, rounds) for t in (context.params, context.current_state()))
        rows, facts = split_rows((x, sequences), count)
        per_round = cfg.num_layers // (stages * rounds)
        here = jnp.arange(stages)

        def one_stage(p: Any, s: Any, y: Any, mine: Any, stage: Any, local: Any) -> tuple[Any, Outputs]:
            # `local` is negative while a stage waits to be filled, and too large when it is through: clipped, its idle
            # ticks compute on something that exists, and `collect` leaves them out.
            chunk = jnp.clip(local // count, 0, rounds - 1)
            held = [_chosen(tree, chunk) for tree in (p, s)]
            key = None if context.key is None else context.key.fold("microbatch", local % count)
            first = (chunk * stages + stage) * per_round
            return run_detached(context, self.stage, {_LAYER: held[0]}, {_LAYER: held[1]}, key, (y, mine, first))

        # Named, so that sharding constraints inside stay valid: each then has one more, leading dimension on the stage
        # axis.
        every = jax.vmap(one_stage, spmd_axis_name=axes if len(axes) > 1 else axes[0])

        def tick(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], Outputs]:
            moving, returned = carry
            # New microbatches enter until all are in; after that what comes back from the last stage goes round again.
            entering = (
                jnp.where(t < count, pick_microbatch(rows, t), pick_microbatch(returned, t % count))
                if rounds > 1
                else pick_microbatch(rows, t)
            )
            moving = on_stages(jnp.roll(moving, 1, axis=0).at[0].set(entering))
            local = t - here
            moving, outputs = every(params, state, moving, pick_microbatch(facts, local % count), here, local)
            # The first S - 1 ticks write what no microbatch made; each place is written again before it is read, if M
            # >= S.
            returned = jax.lax.dynamic_update_index_in_dim(returned, moving[-1], (t - stages + 1) % count, 0)
            return (on_stages(moving), returned), outputs

        empty = on_stages(jnp.zeros((stages, *rows.shape[1:]), rows.dtype))
        ticks = jnp.arange(rounds * count + stages - 1)
        (_, returned), outputs = jax.lax.scan(tick, (empty, jnp.zeros_like(rows)), ticks)
        context.collector.absorb(collect_ticks(outputs, stages, count, rounds))
        return kn.constrain(join_rows(returned), ("batch", "length", "embed"))

    # --- decoding --------------------------------------------------------------------------------------------

    def _cached(self, x: Any, sequences: Sequences, caches: Any, stages: int) -> tuple[Any, Any]:
        """Stages take turns: in tick t only the t-th run of layers has something to do and keeps its caches."""
        if stages == 1:
            return self._run(x, sequences, jnp.int32(0), caches)
        context = current_context()
        check_schedule(self.config.num_layers, stages, stages, 1, self.path)
        params, state, held = (
            by_stage(t, stages, 1) for t in (context.params[_LAYER], context.current_state().get(_LAYER, {}), caches)
        )
        per_stage = self.config.num_layers // stages
        here = jnp.arange(stages)

        def one_stage(p: Any, s: Any, y: Any, cache: Any, stage: Any) -> Any:
            mine, own, cache = (jax.tree.map(lambda leaf: leaf[0], t) for t in (p, s, cache))
            arguments = (y, sequences, stage * per_stage, cache)
            (y, cache), _ = run_detached(context, self._run, {_LAYER: mine}, {_LAYER: own}, context.key, arguments)
            return y, jax.tree.map(lambda leaf: leaf[None], cache)

        moving = on_stages(jnp.zeros((stages, *x.shape), x.dtype).at[0].set(x))
        for t in range(stages):
            moving, extended = jax.vmap(one_stage, spmd_axis_name=stage_axes()[0])(params, state, moving, held, here)
            # vmap runs every stage in every tick; a stage out of its turn has extended its cache by garbage, which is
            # put back.
            mine = here == t
            held = jax.tree.map(
                lambda new, old, m=mine: jnp.where(m.reshape(-1, *[1] * (new.ndim - 1)), new, old), extended, held
            )
            moving = on_stages(jnp.roll(moving, 1, axis=0))
        return moving[0], jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), held)

    @kn.nowrap
    def cuts(self) -> dict[str, int]:
        """Returns the number of microbatches."""
        return {"microbatches": self.config.microbatches}

    @kn.nowrap
    def idle_share(self, stages: int) -> float:
        """Returns (S - 1) / (R M + S - 1): while the pipeline fills and drains, stages wait."""
        return idle_fraction(stages, self.config.microbatches, self.config.rounds)

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


def idle_fraction(stages: int, microbatches: int, rounds: int = 1) -> float:
    """Returns the share of a step in which a stage waits, for any times of forward and backward."""
    return (stages - 1) / (rounds * microbatches + stages - 1)


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


def _chosen(tree: Any, chunk: jax.Array) -> Any:
    """Returns the runs of layers of one round."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, chunk, keepdims=False), tree)


def by_stage(tree: Any, stages: int, rounds: int) -> Any:
    """Returns arrays [layers, …] as [S, R, k, …], each stage with its runs of layers."""

    def split(leaf: jax.Array) -> jax.Array:
        per_round = leaf.shape[0] // (stages * rounds)
        # Layer order is round, stage, layer within: neighbouring runs lie on neighbouring stages, so that a roll hands
        # on.
        return leaf.reshape(rounds, stages, per_round, *leaf.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, tree)


def on_stages(x: jax.Array) -> jax.Array:
    """Returns activations [S, B, T, E] constrained to their stages."""
    return kn.constrain(x, ("stage", "batch", "length", "embed"))


def collect_ticks(outputs: Outputs, stages: int, count: int, rounds: int) -> Outputs:
    """Returns the outputs of all ticks as those of one pass; ticks in which a stage had nothing to do don't count.

    Each leaf is [ticks, S, …]. State keeps what the last microbatch left, in layer order.
    """
    chunk, micro, stage = np.meshgrid(np.arange(rounds), np.arange(count), np.arange(stages), indexing="ij")
    # Microbatch m of round r is at stage s in tick r M + m + s: picking just those leaves the idle ticks' metrics and
    # losses out.
    done = jax.tree.map(lambda leaf: leaf[chunk * count + micro + stage, stage], outputs)
    last = {path: x[:, -1].reshape(-1, *x.shape[4:]) for path, x in done.state.items()}
    for _ in range(3):
        done = done.reduce_leading()
    return Outputs(done.metrics, done.losses, last, done.emitted, done.kernels)


def check_schedule(num_layers: int, stages: int, count: int, rounds: int, path: str) -> None:
    """Raises ShardingError, with all that is wrong, where layers or microbatches don't fit the stages."""
    problems = []
    if num_layers % (stages * rounds):
        problems.append(f"num_layers ({num_layers}) is not a multiple of stages x rounds ({stages} x {rounds})")
    if rounds > 1 and count < stages:
        problems.append(f"microbatches ({count}) are fewer than stages ({stages}), and {rounds} rounds need as many")
    if problems:
        raise ShardingError(f"{path}: " + "; ".join(problems))
