"""Gradients whose backwards start before all forwards end: each microbatch's backward follows its forward.

So a stage saves inputs of few microbatches. With `split` (zero bubble; Qi et al. 2023, arXiv:2401.10241) the gradients
of inputs come first, because other stages wait for them, and those of weights later, in ticks in which every stage has
some. Legend: S stages, M microbatches, k places for layers a stage.
"""

import dataclasses
import functools
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
from kanawa.module import Loss, Outputs, param_specs

from kanawa_parallel.pipeline.places import Places
from kanawa_parallel.pipeline.stack import (
    PipelinedStack,
    by_layer,
    by_stage,
    collect_ticks,
    inside_stages,
    on_stages,
    pick_microbatch,
    split_rows,
    stage_axes,
)
from kanawa_parallel.pipeline.timetable import Circles, EarlyBackwards
from kanawa_parallel.pipeline.two_backwards import TwoBackwards, in_two

_LAYER = "layer"


class OneForwardOneBackward(GradientStrategy):
    """Gradients of a model with a PipelinedStack in `microbatches` parts, each stage recomputing from its input.

    `split` takes the gradients of weights apart: less idle time, and what both backwards need is saved for S
    microbatches.
    """

    class Config(GradientStrategy.Config):
        PLACEMENT = ("microbatches", "split")

        microbatches: kn.Size = kn.REQUIRED
        split: bool = False

    replaces_stack = True

    def cuts(self) -> dict[str, int]:
        """Returns the number of microbatches."""
        return {"microbatches": self.config.microbatches}

    def idle_share(self, stages: int, num_layers: int) -> float:
        """Returns the share of places without work, where forward, recomputation and both backwards take as long."""
        times = EarlyBackwards(stages, self.config.microbatches, self.config.split)
        return times.idle_fraction(num_layers)

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients of the whole batch's loss, and its outputs; state is what the last microbatch left.

        Raises ConfigError where the loss isn't a model's with a pipelined stack.
        """
        model, name, stack = _pipelined(loss)
        axes, stages = stage_axes()
        times = EarlyBackwards(stages, self.config.microbatches, self.config.split)
        # Weights depend on the batch, not on parameters, so the compiler drops the rest of this pass.
        weights = {path: term.weight for path, term in loss(params, state, batch, key).losses.items()}
        places = Places(stack.config.num_layers, stages)
        below = (model.fixed or {}).get(name) or {}, state.get(name) or {}
        specs = param_specs(stack)[_LAYER]
        held = tuple(by_stage(tree.get(_LAYER) or {}, places, specs) for tree in below)
        rows = split_rows(batch, times.microbatches)
        return _Parts(model, stack, name, state, held, rows, key, weights, axes, places, times).run(params)


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
    """What a tick passes on: activations, saved inputs and cotangents by stage, and summed gradients.

    `rest` is what gradients of weights still need, [slots, S, k, …].
    """

    moving: Any
    inputs: Any
    cotangents: Any
    layers: Any
    others: Any
    rest: Any = ()


class _Held(NamedTuple):
    """What a run of layers needs besides trained parameters and its stream; the first three are [k, …]."""

    fixed: Any
    state: Any
    numbers: jax.Array
    facts: Sequences
    key: jax.Array

    def each(self) -> tuple[Any, Any, jax.Array]:
        """Returns what is [k, …]."""
        return self.fixed, self.state, self.numbers

    def at(self, places: tuple[Any, Any, jax.Array]) -> "_Held":
        """Returns what other layers need of the same microbatch."""
        fixed, state, numbers = places
        return _Held(fixed, state, numbers, self.facts, self.key)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The model in the parts that ticks call, and the loops over them."""

    loss: ModelLoss
    stack: PipelinedStack
    name: str
    state: Any
    held: tuple[Any, ...]
    batches: Batch
    key: jax.Array
    weights: dict[str, jax.Array]
    axes: tuple[str, ...]
    places: Places
    times: EarlyBackwards

    # --- parts of the model ----------------------------------------------------------------------------------

    def scaled(self, outputs: Outputs, prefix: str = "") -> jax.Array:
        """Returns the share of these loss terms in the whole batch's loss."""
        terms = (Loss(t.total, self.weights[prefix + p], t.coefficient).value() for p, t in outputs.losses.items())
        return sum(terms, jnp.zeros((), jnp.float32))

    def root(self, method: str, others: Any, microbatch: jax.Array, *args: Any) -> tuple[Any, Outputs]:
        """Runs a method of the model, whose stack's parameters it doesn't need."""
        pure = kn.functional(self.loss.model, method)
        key = jax.random.fold_in(self.key, microbatch)
        return pure(self.loss.complete(others), self.state, *args, key=key, train=True)

    def embed(self, others: Any, microbatch: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Outputs]]:
        """Returns a microbatch's first stream, and its share of the loss with outputs."""
        batch = pick_microbatch(self.batches, microbatch)
        x, outputs = self.root("embed", others, microbatch, batch.input_ids, _sequences(batch))
        return x, (self.scaled(outputs), outputs)

    def head(self, others: Any, x: jax.Array, microbatch: jax.Array) -> tuple[jax.Array, Outputs]:
        """Returns the head's share of the loss for a microbatch's last stream."""
        _, outputs = self.root("head_and_loss", others, microbatch, x, pick_microbatch(self.batches, microbatch))
        return self.scaled(outputs), outputs

    def of_stage(self, stage: jax.Array, microbatch: jax.Array) -> _Held:
        """Returns what a stage needs for a microbatch."""
        # What is mapped over stages are the trained layers alone: frozen ones and state are indexed by the stage.
        fixed, state = jax.tree.map(lambda leaf: leaf[stage, 0], self.held)
        # The key that the pipelined stack derives for this microbatch, so that dropout agrees with the other schedules.
        key = jax.random.fold_in(fold_name(fold_name(self.key, self.name), "microbatch"), microbatch)
        numbers = jnp.asarray(self.places.layers)[stage, 0]
        return _Held(fixed, state, numbers, _sequences(pick_microbatch(self.batches, microbatch)), key)

    def layers(self, trained: Any, held: _Held, x: jax.Array) -> tuple[jax.Array, jax.Array, Outputs]:
        """Returns (stream, share of the loss, outputs [k, …]) after some layers."""
        y, outputs = kn.functional(self.stack, "stage")(
            {_LAYER: merge_trees(held.fixed, trained)},
            {_LAYER: held.state},
            x,
            held.facts,
            held.numbers,
            even=self.places.even,
            key=held.key,
            train=True,
        )
        return y, self.scaled(outputs.reduce_leading(), f"{self.name}."), outputs

    def backward_of(self, trained: Any, held: _Held, x: jax.Array, dy: jax.Array) -> tuple[Any, jax.Array]:
        """Returns gradients of parameters and of the stream after some layers, which it runs again from their input."""
        _, pull = jax.vjp(lambda p, x: self.layers(p, held, x)[:2], trained, x)
        mine, dx = pull((dy, jnp.ones((), jnp.float32)))
        return mine, dx

    def on_every_stage(self, function: Any, *args: Any) -> Any:
        """Returns `function` of the arguments, mapped over their leading dimension, the stages."""
        if self.places.stages == 1:
            return jax.vmap(function)(*args)
        with inside_stages(self.axes):
            return jax.vmap(function, spmd_axis_name=self.axes if len(self.axes) > 1 else self.axes[0])(*args)

    # --- ticks -----------------------------------------------------------------------------------------------

    @property
    def here(self) -> jax.Array:
        """Returns the stages' numbers."""
        return jnp.arange(self.places.stages)

    def forward(self, layers: Any, others: Any, carry: _Carry, t: jax.Array) -> tuple[_Carry, tuple[Outputs, Outputs]]:
        """Moves every microbatch one stage on."""
        # Every tick embeds, those that drain too: `pick` clips to the last microbatch, which enters again and is
        # dropped.
        entering, (_, embedded) = self.embed(others, t)
        x = on_stages(jnp.roll(carry.moving, 1, axis=0).at[0].set(entering))
        inputs = jax.lax.dynamic_update_index_in_dim(carry.inputs, x, t % carry.inputs.shape[0], 0)

        def one(trained: Any, x: Any, stage: Any, microbatch: Any) -> Any:
            y, _, outputs = self.layers(trained, self.of_stage(stage, microbatch), x)
            return y, outputs

        moving, outputs = self.on_every_stage(one, layers, x, self.here, t - self.here)
        return carry._replace(moving=on_stages(moving), inputs=inputs), (embedded, outputs)

    def at_head(self, others: Any, carry: _Carry, t: jax.Array) -> tuple[_Carry, jax.Array, Outputs]:
        """Turns the microbatch round that reached the last stage in this tick; returns its cotangent too."""
        microbatch = t - (self.places.stages - 1)
        _, pull, outputs = jax.vjp(lambda r, x: self.head(r, x, microbatch), others, carry.moving[-1], has_aux=True)
        grads, arriving = pull(jnp.ones((), jnp.float32))
        return carry._replace(others=_add(carry.others, grads)), arriving, outputs

    def backward(
        self, layers: Any, others: Any, carry: _Carry, t: jax.Array, arriving: jax.Array, two: TwoBackwards | None
    ) -> _Carry:
        """Moves every cotangent one stage back; `arriving` is the last stage's."""
        microbatch = self.times.backward_of(t, self.here)
        # In its idle ticks a stage computes on whatever lies there, as it must: all stages run one program. Only the
        # gradients are masked out.
        works = (microbatch >= 0) & (microbatch < self.times.microbatches)
        # Stage s puts microbatch m away in tick m + s; 2 S - 1 places are enough, because it fetches it again before
        # the ring of places comes round.
        slots = (microbatch + self.here) % carry.inputs.shape[0]
        cotangents = on_stages(jnp.roll(carry.cotangents, -1, axis=0).at[-1].set(arriving))

        def one(trained: Any, inputs: Any, dy: Any, stage: Any, micro: Any, slot: Any, work: Any) -> tuple[Any, Any]:
            x = jax.lax.dynamic_index_in_dim(inputs, slot, keepdims=False)
            held = self.of_stage(stage, micro)
            # Forward again from the stage's input: keeping what layers save would cost memory for 2 S - 1 microbatches.
            if two is not None:
                rest, dx = self._of_inputs(two)(trained, held, x, dy)
                return rest, jnp.where(work, dx, jnp.zeros_like(dx))
            grads = self.backward_of(trained, held, x, dy)
            masked: tuple[Any, Any] = jax.tree.map(lambda g: jnp.where(work, g, jnp.zeros_like(g)), grads)
            return masked

        # Saved inputs are [places, S, …], vmap wants stages first.
        stages_first = carry.inputs.swapaxes(0, 1)
        mine, dx = self.on_every_stage(one, layers, stages_first, cotangents, self.here, microbatch, slots, works)
        _, pull = jax.vjp(lambda r: _without_outputs(self.embed(r, microbatch[0])), others)
        # Idle ticks have a zero cotangent on both outputs, so the embedding gets nothing from them.
        (of_embed,) = pull((dx[0], works[0].astype(jnp.float32)))
        carry = carry._replace(cotangents=on_stages(dx), others=_add(carry.others, of_embed))
        if two is None:
            return carry._replace(layers=_add(carry.layers, mine))
        slot = t % self.places.stages
        rest = [jax.lax.dynamic_update_index_in_dim(ring, x, slot, 0) for ring, x in zip(carry.rest, mine, strict=True)]
        return carry._replace(rest=rest)

    def _of_inputs(self, two: TwoBackwards) -> Any:
        """Returns the backward of a stage's inputs alone; in place of gradients it returns what those still need."""

        def back(trained: Any, held: _Held, x: jax.Array, dy: jax.Array) -> tuple[list[jax.Array], jax.Array]:
            def onward(x: jax.Array, item: Any) -> tuple[jax.Array, jax.Array]:
                p, places = jax.tree.map(lambda leaf: leaf[None], item)
                y, _, _ = self.layers(p, held.at(places), x)
                return y, x

            def back_one(dy: jax.Array, item: Any) -> tuple[jax.Array, list[jax.Array]]:
                p, places, x = item
                dx, rest = two.of_inputs(p, held.at(places), x, dy)
                return dx, rest

            _, inputs = jax.lax.scan(onward, x, (trained, held.each()))
            dx, rest = jax.lax.scan(back_one, dy, (trained, held.each(), inputs), reverse=True)
            return rest, dx

        return back

    def of_weights(self, layers: Any, carry: _Carry, t: jax.Array, two: TwoBackwards) -> _Carry:
        """Adds the gradients of weights of the microbatch whose backward has just reached the first stage."""
        microbatch = self.times.weights_of(t)
        stages = self.places.stages
        # Stage s took that microbatch back in tick t - s.
        slots = (t - self.here) % stages

        def one(trained: Any, rest: Any, stage: Any, slot: Any) -> Any:
            held = self.of_stage(stage, microbatch)
            mine = [jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False) for ring in rest]

            def layer(_: None, item: Any) -> tuple[None, Any]:
                p, places, needed = item
                return None, two.of_weights(p, held.at(places), needed)

            return jax.lax.scan(layer, None, (trained, held.each(), mine))[1]

        rest = [ring.swapaxes(0, 1) for ring in carry.rest]
        grads = self.on_every_stage(one, layers, rest, self.here, slots)
        return carry._replace(layers=_add(carry.layers, grads))

    # --- loops -----------------------------------------------------------------------------------------------

    def split(self, layers: Any, stream: jax.Array) -> TwoBackwards:
        """Returns one layer's backward in two parts."""

        def backward(p: Any, held: _Held, x: jax.Array, dy: jax.Array) -> tuple[Any, jax.Array]:
            p, places = jax.tree.map(lambda leaf: leaf[None], (p, held.each()))
            mine, dx = self.backward_of(p, held.at(places), x, dy)
            return jax.tree.map(lambda leaf: leaf[0], mine), dx

        def shapes(layers: Any, stream: jax.Array) -> Any:
            held = self.of_stage(jnp.int32(0), jnp.int32(0))
            places = jax.tree.map(lambda leaf: leaf[0], held.each())
            mine = jax.tree.map(lambda leaf: leaf[0, 0], layers)
            return mine, held.at(places), stream[0], stream[0]

        with inside_stages(self.axes):
            return in_two(backward, *jax.eval_shape(shapes, layers, stream))

    def first_carry(self, layers: Any, others: Any, stream: jax.Array, two: TwoBackwards | None) -> _Carry:
        """Returns the empty carry."""
        # The first stage waits longest for its backward: S - 1 ticks there and S - 1 back, and the tick itself.
        stages = self.places.stages
        saved = jnp.zeros((2 * stages - 1, *stream.shape), stream.dtype)
        carry = _Carry(stream, saved, stream, *(_zeros(tree) for tree in (layers, others)))
        if two is None:
            return carry

        def rest(layers: Any, stream: jax.Array) -> Any:
            arguments = layers, stream, stream, self.here, self.here
            back = self._of_inputs(two)
            return self.on_every_stage(lambda p, x, dy, s, m: back(p, self.of_stage(s, m), x, dy)[0], *arguments)

        shapes = jax.eval_shape(rest, layers, stream)
        return carry._replace(rest=[jnp.zeros((stages, *shape.shape), shape.dtype) for shape in shapes])

    def run(self, params: Any) -> tuple[Any, Outputs]:
        """Runs all ticks; returns gradients shaped like `params` and the merged outputs."""
        below = params[self.name]
        specs = param_specs(self.stack)[_LAYER]
        layers = jax.tree.map(lambda leaf: leaf[:, 0], by_stage(below[_LAYER], self.places, specs))
        others = {**params, self.name: {n: leaf for n, leaf in below.items() if n != _LAYER}}
        shape, _ = jax.eval_shape(self.embed, others, jnp.int32(0))
        stream = on_stages(jnp.zeros((self.places.stages, *shape.shape), shape.dtype))
        none = jnp.zeros(shape.shape, shape.dtype)
        two = self.split(layers, stream) if self.times.split else None
        carry = self.first_carry(layers, others, stream, two)
        passed, headed = [], []

        def tick(work: frozenset[str], carry: _Carry, t: jax.Array) -> tuple[_Carry, Any]:
            left, of_head, arriving = None, None, none
            if "forward" in work:
                carry, left = self.forward(layers, others, carry, t)
            if "head" in work:
                carry, arriving, of_head = self.at_head(others, carry, t)
            if "backward" in work:
                carry = self.backward(layers, others, carry, t, arriving, two)
            if "weights" in work and two is not None:
                carry = self.of_weights(layers, carry, t, two)
            return carry, (left, of_head)

        for ticks, work in self.times.loops():
            # A plan knows the stages' work by the stack's name.
            with jax.named_scope(self.name):
                carry, (left, of_head) = jax.lax.scan(
                    functools.partial(tick, work), carry, jnp.arange(ticks.start, ticks.stop)
                )
            passed += [left] if left is not None else []
            headed += [of_head] if of_head is not None else []
        embedded, staged = jax.tree.map(lambda *x: jnp.concatenate(x), *passed)
        # The ticks behind the last microbatch embedded it again: theirs must not count.
        first = jax.tree.map(lambda x: x[: self.times.microbatches], embedded)
        circles = Circles(self.places.stages, self.times.microbatches)
        staged = _prefixed(collect_ticks(staged, self.places, circles), f"{self.name}.")
        of_head = jax.tree.map(lambda *x: jnp.concatenate(x), *headed)
        outputs = _last_state(first).merge(staged).merge(_last_state(of_head))
        joined = by_layer(jax.tree.map(lambda g: g[:, None], carry.layers), self.places, specs)
        grads = {**carry.others, self.name: {**carry.others[self.name], _LAYER: joined}}
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
