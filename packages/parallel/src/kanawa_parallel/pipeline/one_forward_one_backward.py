"""1F1B gradients: each microbatch's backward follows its forward, so a stage saves inputs of few of them.

Three loops of ticks: forwards only until the last stage has a microbatch,
then one forward and one backward a tick, then backwards only. Legend: S stages, M microbatches, k layers a stage.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.prng import fold_name
from kanawa.arrays.tree import merge_trees
from kanawa.contracts import Batch, GradientStrategy, LossProgram, Sequences
from kanawa.contracts.strategy import ModelLoss
from kanawa.errors import ConfigError
from kanawa.module import Loss, Outputs

from kanawa_parallel.pipeline.stack import (
    PipelinedStack,
    by_stage,
    check_schedule,
    collect_ticks,
    idle_fraction,
    on_stages,
    pick_microbatch,
    split_rows,
    stage_axes,
)

_LAYER = "layer"


class OneForwardOneBackward(GradientStrategy):
    """Gradients of a model with a PipelinedStack in `microbatches` parts, each stage recomputing from its input."""

    class Config(GradientStrategy.Config):
        PLACEMENT = ("microbatches",)

        microbatches: kn.Size = kn.REQUIRED

    replaces_stack = True

    def cuts(self) -> dict[str, int]:
        """Returns the number of microbatches."""
        return {"microbatches": self.config.microbatches}

    def idle_share(self, stages: int) -> float:
        """Returns (S - 1) / (M + S - 1): warming up and draining take S - 1 ticks each, of half a tick's work."""
        return idle_fraction(stages, self.config.microbatches)

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients of the whole batch's loss, and its outputs; state is what the last microbatch left.

        Raises ConfigError where the loss isn't a model's with a pipelined stack.
        """
        model, name, stack = _pipelined(loss)
        axes, stages = stage_axes()
        count = self.config.microbatches
        check_schedule(stack.config.num_layers, stages, count, 1, name)
        # Weights depend on the batch, not on parameters, so the compiler drops the rest of this pass.
        weights = {path: term.weight for path, term in loss(params, state, batch, key).losses.items()}
        parts = _Parts(model, stack, name, state, split_rows(batch, count), key, weights, axes, stages, count)
        return parts.run(params)


def _pipelined(loss: LossProgram) -> tuple[ModelLoss, str, PipelinedStack]:
    """Returns the model's loss, and the name and the module of its pipelined stack."""
    children = loss.model.children if isinstance(loss, ModelLoss) else {}
    stacks = {name: child for name, child in children.items() if isinstance(child, PipelinedStack)}
    if not isinstance(loss, ModelLoss) or len(stacks) != 1:
        message = (
            "1F1B takes apart a model with one pipelined stack among its children, and found "
            f"{len(stacks) or 'none'}; apply the modifier `pipeline`, or use another gradient strategy"
        )
        raise ConfigError(message)
    ((name, stack),) = stacks.items()
    return loss, name, stack


class _Carry(NamedTuple):
    """What a tick passes on: activations, saved inputs and cotangents by stage, and summed gradients."""

    moving: Any
    inputs: Any
    cotangents: Any
    layers: Any
    rest: Any


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The model in the parts that ticks call, and the three loops over them."""

    loss: ModelLoss
    stack: PipelinedStack
    name: str
    state: Any
    batches: Batch
    key: jax.Array
    weights: dict[str, jax.Array]
    axes: tuple[str, ...]
    stages: int
    count: int

    # --- parts of the model ----------------------------------------------------------------------------------

    def scaled(self, outputs: Outputs, prefix: str = "") -> jax.Array:
        """Returns the share of these loss terms in the whole batch's loss."""
        terms = (Loss(t.total, self.weights[prefix + p], t.coefficient).value() for p, t in outputs.losses.items())
        return sum(terms, jnp.zeros((), jnp.float32))

    def root(self, method: str, rest: Any, microbatch: jax.Array, *args: Any) -> tuple[Any, Outputs]:
        """Runs a method of the model, whose stack's parameters it doesn't need."""
        pure = kn.functional(self.loss.model, method)
        key = jax.random.fold_in(self.key, microbatch)
        return pure(self.loss.complete(rest), self.state, *args, key=key, train=True)

    def embed(self, rest: Any, microbatch: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Outputs]]:
        """Returns a microbatch's first stream, and its share of the loss with outputs."""
        batch = pick_microbatch(self.batches, microbatch)
        x, outputs = self.root("embed", rest, microbatch, batch.input_ids, _sequences(batch))
        return x, (self.scaled(outputs), outputs)

    def head(self, rest: Any, x: jax.Array, microbatch: jax.Array) -> tuple[jax.Array, Outputs]:
        """Returns the head's share of the loss for a microbatch's last stream."""
        _, outputs = self.root("head_and_loss", rest, microbatch, x, pick_microbatch(self.batches, microbatch))
        return self.scaled(outputs), outputs

    def stage(self, layers: Any, x: jax.Array, stage: jax.Array, microbatch: jax.Array) -> Any:
        """Returns (stream, share of the loss, outputs) after one stage's layers."""
        fixed = ((self.loss.fixed or {}).get(self.name) or {}).get(_LAYER) or {}
        held_state = (self.state.get(self.name) or {}).get(_LAYER) or {}
        per_stage = self.stack.config.num_layers // self.stages
        # What is mapped over stages are the trained layers alone: frozen ones and state are indexed by the stage.
        mine = jax.tree.map(lambda leaf: leaf[stage, 0], by_stage((fixed, held_state), self.stages, 1))
        # The key that the pipelined stack derives for this microbatch, so that dropout agrees with the other schedules.
        key = jax.random.fold_in(fold_name(fold_name(self.key, self.name), "microbatch"), microbatch)
        y, outputs = kn.functional(self.stack, "stage")(
            {_LAYER: merge_trees(mine[0], layers)},
            {_LAYER: mine[1]},
            x,
            _sequences(pick_microbatch(self.batches, microbatch)),
            stage * per_stage,
            key=key,
            train=True,
        )
        return y, self.scaled(outputs, f"{self.name}."), outputs

    def on_every_stage(self, function: Any) -> Any:
        """Returns `function` mapped over the leading, stage dimension of all its arguments."""
        if self.stages == 1:
            return jax.vmap(function)
        return jax.vmap(function, spmd_axis_name=self.axes if len(self.axes) > 1 else self.axes[0])

    # --- ticks -----------------------------------------------------------------------------------------------

    def forward(self, layers: Any, rest: Any, carry: _Carry, t: jax.Array) -> tuple[_Carry, tuple[Outputs, Outputs]]:
        """Moves every microbatch one stage on."""
        # Every tick embeds, those that drain too: `pick` clips to the last microbatch, which enters again and is
        # dropped.
        entering, (_, embedded) = self.embed(rest, t)
        x = on_stages(jnp.roll(carry.moving, 1, axis=0).at[0].set(entering))
        inputs = jax.lax.dynamic_update_index_in_dim(carry.inputs, x, t % carry.inputs.shape[0], 0)
        here = jnp.arange(self.stages)
        moving, _, outputs = self.on_every_stage(self.stage)(layers, x, here, t - here)
        return carry._replace(moving=on_stages(moving), inputs=inputs), (embedded, outputs)

    def backward(self, layers: Any, rest: Any, carry: _Carry, t: jax.Array, arriving: jax.Array) -> _Carry:
        """Moves every cotangent one stage back; `arriving` is the last stage's."""
        last = self.stages - 1
        here = jnp.arange(self.stages)
        microbatch = t - 2 * last + here
        # In its idle ticks a stage computes on whatever lies there, as it must: all stages run one program. Only the
        # gradients are masked out.
        works = (microbatch >= 0) & (microbatch < self.count)
        # Stage s puts microbatch m away in tick m + s; 2 S - 1 places are enough, because it fetches it again before
        # the ring of places comes round.
        slots = (microbatch + here) % carry.inputs.shape[0]
        cotangents = on_stages(jnp.roll(carry.cotangents, -1, axis=0).at[-1].set(arriving))

        def one(p: Any, inputs: Any, dy: Any, stage: Any, micro: Any, slot: Any, work: Any) -> tuple[Any, Any]:
            x = jax.lax.dynamic_index_in_dim(inputs, slot, keepdims=False)
            # Forward again from the stage's input: keeping what layers save would cost memory for 2 S - 1 microbatches.
            _, pull = jax.vjp(lambda p, x: self.stage(p, x, stage, micro)[:2], p, x)
            mine, dx = jax.tree.map(
                lambda g: jnp.where(work, g, jnp.zeros_like(g)), pull((dy, jnp.ones((), jnp.float32)))
            )
            return mine, dx

        # Saved inputs are [places, S, …], vmap wants stages first.
        grads, dx = self.on_every_stage(one)(
            layers, carry.inputs.swapaxes(0, 1), cotangents, here, microbatch, slots, works
        )
        _, pull = jax.vjp(lambda r: _without_outputs(self.embed(r, microbatch[0])), rest)
        # Idle ticks have a zero cotangent on both outputs, so the embedding gets nothing from them.
        (of_embed,) = pull((dx[0], works[0].astype(jnp.float32)))
        layers, rest = _add(carry.layers, grads), _add(carry.rest, of_embed)
        return carry._replace(cotangents=on_stages(dx), layers=layers, rest=rest)

    def both(self, layers: Any, rest: Any, carry: _Carry, t: jax.Array) -> tuple[_Carry, Any]:
        """Moves forward, turns the microbatch that reached the last stage round at the head, and moves back."""
        carry, (embedded, outputs) = self.forward(layers, rest, carry, t)
        finished = t - (self.stages - 1)
        # In tick t the last stage has just finished the forward of microbatch t - (S - 1); its backward starts in the
        # same.
        _, pull, of_head = jax.vjp(lambda r, x: self.head(r, x, finished), rest, carry.moving[-1], has_aux=True)
        grads, arriving = pull(jnp.ones((), jnp.float32))
        carry = carry._replace(rest=_add(carry.rest, grads))
        return self.backward(layers, rest, carry, t, arriving), (embedded, outputs, of_head)

    def run(self, params: Any) -> tuple[Any, Outputs]:
        """Runs all ticks; returns gradients shaped like `params` and the merged outputs."""
        below = params[self.name]
        layers = jax.tree.map(lambda leaf: leaf[:, 0], by_stage(below[_LAYER], self.stages, 1))
        rest = {**params, self.name: {n: leaf for n, leaf in below.items() if n != _LAYER}}
        shape, _ = jax.eval_shape(self.embed, rest, jnp.int32(0))
        stream = on_stages(jnp.zeros((self.stages, *shape.shape), shape.dtype))
        # The first stage waits longest for its backward: S - 1 ticks there and S - 1 back, and the tick itself.
        saved = jnp.zeros((2 * self.stages - 1, *stream.shape), stream.dtype)
        carry = _Carry(stream, saved, stream, *(_zeros(tree) for tree in (layers, rest)))
        last = self.stages - 1
        warm = jnp.arange(last)
        steady = jnp.arange(last, last + self.count)
        drain = jnp.arange(last + self.count, self.count + 2 * last)
        none = jnp.zeros(shape.shape, shape.dtype)
        carry, early = jax.lax.scan(lambda c, t: self.forward(layers, rest, c, t), carry, warm)
        carry, (embedded, staged, headed) = jax.lax.scan(lambda c, t: self.both(layers, rest, c, t), carry, steady)
        carry, _ = jax.lax.scan(lambda c, t: (self.backward(layers, rest, c, t, none), None), carry, drain)
        embedded, staged = (
            jax.tree.map(lambda *x: jnp.concatenate(x), *pair) for pair in zip(early, (embedded, staged), strict=True)
        )
        # The ticks behind the last microbatch embedded it again: theirs must not count.
        first = jax.tree.map(lambda x: x[: self.count], embedded)
        staged = _prefixed(collect_ticks(staged, self.stages, self.count, 1), f"{self.name}.")
        outputs = _last_state(first).merge(staged).merge(_last_state(headed))
        joined = jax.tree.map(lambda g: g.reshape(-1, *g.shape[2:]), carry.layers)
        grads = {**carry.rest, self.name: {**carry.rest[self.name], _LAYER: joined}}
        return jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params), outputs


def _sequences(batch: Batch) -> Sequences:
    return Sequences(positions=batch.positions, segment_ids=batch.segment_ids)


def _without_outputs(embedded: Any) -> tuple[jax.Array, jax.Array]:
    x, (share, _) = embedded
    return x, share


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), tree)


def _add(total: Any, new: Any) -> Any:
    # The total's dtype, fp32, wins: many small terms would be lost in a bf16 sum.
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, new)


def _last_state(outputs: Outputs) -> Outputs:
    """Returns outputs stacked over microbatches as those of one pass."""
    last = {path: x[-1] for path, x in outputs.state.items()}
    return dataclasses.replace(outputs.reduce_leading(), state=last)


def _prefixed(outputs: Outputs, prefix: str) -> Outputs:
    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {prefix + path: value for path, value in values.items()}

    return dataclasses.replace(
        outputs,
        metrics=named(outputs.metrics),
        losses=named(outputs.losses),
        state=named(outputs.state),
        emitted=named(outputs.emitted),
    )
