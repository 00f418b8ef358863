"""Gradients whose backwards start before all forwards end: each microbatch's backward follows its forward.

So a stage saves inputs of few microbatches. With `split` (zero bubble; Qi et al. 2023, arXiv:2401.10241) the gradients
of inputs come first, because other stages wait for them, and those of weights later, in ticks in which every stage has
some. Legend: S stages, M microbatches, R rounds, k places for layers of a stage in one round.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.arrays.prng import fold_name
from kanawa.arrays.tree import merge_trees
from kanawa.contracts import Batch, GradientStrategy, LossProgram, Sequences
from kanawa.contracts.strategy import ModelLoss
from kanawa.errors import ConfigError
from kanawa.module import Loss, Outputs, param_specs

from kanawa_parallel.pipeline.carried import Carry, Held
from kanawa_parallel.pipeline.places import Places
from kanawa_parallel.pipeline.stack import (
    PipelinedStack,
    by_layer,
    by_stage,
    chosen_round,
    collect_ticks,
    inside_stages,
    on_stages,
    pick_microbatch,
    split_rows,
    stage_axes,
)
from kanawa_parallel.pipeline.timetable import EarlyBackwards, Slots
from kanawa_parallel.pipeline.two_backwards import TwoBackwards, in_two

_LAYER = "layer"


class OneForwardOneBackward(GradientStrategy):
    """Gradients of a model with a PipelinedStack in `microbatches` parts, each stage recomputing from its input.

    Rounds and layers of runs are the stack's. `split` takes the gradients of weights apart: less idle time, and what
    both backwards need is saved for S microbatches. `paired` lets the forward and the backward of a tick run at once.
    """

    class Config(GradientStrategy.Config):
        PLACEMENT = ("microbatches", "split", "paired")

        microbatches: kn.Size = kn.REQUIRED
        split: bool = False
        paired: bool = False

    replaces_stack = True

    def cuts(self) -> dict[str, int]:
        """Returns the number of microbatches."""
        return {"microbatches": self.config.microbatches}

    def idle_share(self, stages: int, stack: kn.Configurable.Config) -> float:
        """Returns the share of places without work, where forward, recomputation and both backwards take as long."""
        if not isinstance(stack, PipelinedStack.Config):
            return 0.0
        places = stack.places(stages)
        return self._times(places).idle_fraction(places)

    def _times(self, places: Places) -> EarlyBackwards:
        own = self.config
        return EarlyBackwards(places.stages, own.microbatches, own.split, places.rounds, own.paired)

    def gradients(self, loss: LossProgram, params: Any, state: Any, batch: Any, key: jax.Array) -> tuple[Any, Outputs]:
        """Returns gradients of the whole batch's loss, and its outputs; state is what the last microbatch left.

        Raises ConfigError where the loss isn't a model's with a pipelined stack.
        """
        model, name, stack = _pipelined(loss)
        axes, stages = stage_axes()
        places = stack.config.places(stages)
        times = self._times(places)
        # Weights depend on the batch, not on parameters, so the compiler drops the rest of this pass.
        weights = {path: term.weight for path, term in loss(params, state, batch, key).losses.items()}
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

    def of_stage(self, stage: jax.Array, turn: jax.Array, microbatch: jax.Array) -> Held:
        """Returns what a stage needs for a microbatch of a round."""
        # What is mapped over stages are the trained layers alone: frozen ones and state are indexed by the stage.
        fixed, state = jax.tree.map(lambda leaf: leaf[stage, turn], self.held)
        # The key that the pipelined stack derives for this microbatch, so that dropout agrees with the other schedules.
        key = jax.random.fold_in(fold_name(fold_name(self.key, self.name), "microbatch"), microbatch)
        numbers = jnp.asarray(self.places.layers)[stage, turn]
        return Held(fixed, state, numbers, _sequences(pick_microbatch(self.batches, microbatch)), key)

    def layers(self, trained: Any, held: Held, x: jax.Array) -> tuple[jax.Array, jax.Array, Outputs]:
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

    def backward_of(self, trained: Any, held: Held, x: jax.Array, dy: jax.Array) -> tuple[Any, jax.Array]:
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

    def once(self, wanted: jax.Array, function: Any) -> Any:
        """Returns `function()`, or zeros like it where a slot of another round has no use for it."""
        if self.places.rounds == 1:
            return function()
        return jax.lax.cond(wanted, function, lambda: _zeros_like(jax.eval_shape(function)))

    def forward(self, layers: Any, others: Any, carry: Carry, t: jax.Array) -> tuple[Carry, tuple[Outputs, Outputs]]:
        """Moves every microbatch one stage on."""
        # Every tick embeds, those that drain too: `pick` clips to the last microbatch, which enters again and is
        # dropped.
        entry = _at(self.times.forward_slots, t)
        entering, (_, embedded) = self.once(entry.turn == 0, lambda: self.embed(others, entry.microbatch))
        if self.places.rounds > 1:
            back = carry.returned[entry.before % len(carry.returned)]
            entering = jnp.where(entry.turn == 0, entering, back)
        x = on_stages(jnp.roll(carry.moving, 1, axis=0).at[0].set(entering))
        inputs = jax.lax.dynamic_update_index_in_dim(carry.inputs, x, t % carry.inputs.shape[0], 0)
        slot = _at(self.times.forward_slots, t - self.here)

        def one(trained: Any, x: Any, stage: Any, turn: Any, microbatch: Any) -> Any:
            y, _, outputs = self.layers(chosen_round(trained, turn), self.of_stage(stage, turn, microbatch), x)
            return y, outputs

        moving, outputs = self.on_every_stage(one, layers, x, self.here, slot.turn, slot.microbatch)
        carry = carry._replace(moving=on_stages(moving), inputs=inputs)
        if self.places.rounds > 1:
            left = (t - self.places.stages + 1) % len(carry.returned)
            carry = carry._replace(
                returned=jax.lax.dynamic_update_index_in_dim(carry.returned, carry.moving[-1], left, 0)
            )
        return carry, (embedded, outputs)

    def at_head(self, others: Any, carry: Carry, t: jax.Array) -> tuple[Carry, jax.Array, Outputs]:
        """Turns the microbatch round whose last backward slot begins in this tick; returns its cotangent too."""
        slot = _at(self.times.backward_slots, t - self.times.lag)
        x = carry.moving[-1] if self.places.rounds == 1 else carry.returned[slot.forward % len(carry.returned)]

        def turned() -> Any:
            _, pull, outputs = jax.vjp(lambda r, x: self.head(r, x, slot.microbatch), others, x, has_aux=True)
            grads, arriving = pull(jnp.ones((), jnp.float32))
            return _add(carry.others, grads), arriving, outputs

        # Gradients are added inside, so that slots of other rounds don't pass over the vocabulary's.
        if self.places.rounds == 1:
            total, arriving, outputs = turned()
        else:
            _, of_dy, of_outputs = jax.eval_shape(turned)
            last = (slot.turn == self.places.rounds - 1) & (slot.microbatch >= 0)
            rest = (carry.others, *_zeros_like((of_dy, of_outputs)))
            total, arriving, outputs = jax.lax.cond(last, turned, lambda: rest)
        return carry._replace(others=total), arriving, outputs

    def backward(
        self, layers: Any, others: Any, carry: Carry, t: jax.Array, arriving: jax.Array, two: TwoBackwards | None
    ) -> Carry:
        """Moves every cotangent one stage back; `arriving` is what the head sends to the last stage."""
        last, rounds = self.places.stages - 1, self.places.rounds
        if rounds > 1:
            entry = _at(self.times.backward_slots, t - self.times.lag)
            back = carry.sent_back[entry.before % len(carry.sent_back)]
            arriving = jnp.where(entry.turn == rounds - 1, arriving, back)
        number = t - self.times.lag - last + self.here
        slot = _at(self.times.backward_slots, number)
        # In its idle ticks a stage computes on whatever lies there, as it must: all stages run one program. Only the
        # gradients are masked out.
        works = (number >= 0) & (number < len(self.times.backward_slots.turn)) & (slot.microbatch >= 0)
        # A stage puts slot f away in tick f + s, and fetches it again before the ring of places comes round.
        saved = (slot.forward + self.here) % carry.inputs.shape[0]
        cotangents = on_stages(jnp.roll(carry.cotangents, -1, axis=0).at[-1].set(arriving))

        def one(
            trained: Any, total: Any, inputs: Any, dy: Any, stage: Any, turn: Any, micro: Any, saved: Any, work: Any
        ) -> tuple[Any, Any]:
            x = jax.lax.dynamic_index_in_dim(inputs, saved, keepdims=False)
            held, here = self.of_stage(stage, turn, micro), chosen_round(trained, turn)
            # Forward again from the stage's input: keeping what layers save would cost memory for 2 S - 1 microbatches.
            if two is not None:
                rest, dx = self._of_inputs(two)(here, held, x, dy)
                return rest, jnp.where(work, dx, jnp.zeros_like(dx))
            grads = self.backward_of(here, held, x, dy)
            mine, dx = jax.tree.map(lambda g: jnp.where(work, g, jnp.zeros_like(g)), grads)
            return _added(total, mine, turn), dx

        # Saved inputs are [places, S, …], vmap wants stages first.
        stages_first = carry.inputs.swapaxes(0, 1)
        facts = (self.here, slot.turn, slot.microbatch, saved, works)
        mine, dx = self.on_every_stage(one, layers, carry.layers, stages_first, cotangents, *facts)
        first, ends = _at(self.times.backward_slots, number[0]), works[0] & (slot.turn[0] == 0)

        def embedded() -> Any:
            _, pull = jax.vjp(lambda r: _without_outputs(self.embed(r, first.microbatch)), others)
            # Idle ticks have a zero cotangent on both outputs, so the embedding gets nothing from them.
            (of_embed,) = pull((dx[0], works[0].astype(jnp.float32)))
            return _add(carry.others, of_embed)

        total = embedded() if rounds == 1 else jax.lax.cond(ends, embedded, lambda: carry.others)
        carry = carry._replace(cotangents=on_stages(dx), others=total)
        if rounds > 1:
            left = number[0] % len(carry.sent_back)
            carry = carry._replace(sent_back=jax.lax.dynamic_update_index_in_dim(carry.sent_back, dx[0], left, 0))
        if two is None:
            return carry._replace(layers=mine)
        place = t % self.places.stages
        rest = [
            jax.lax.dynamic_update_index_in_dim(ring, x, place, 0) for ring, x in zip(carry.rest, mine, strict=True)
        ]
        return carry._replace(rest=rest)

    def _of_inputs(self, two: TwoBackwards) -> Any:
        """Returns the backward of a stage's inputs alone; in place of gradients it returns what those still need."""

        def back(trained: Any, held: Held, x: jax.Array, dy: jax.Array) -> tuple[list[jax.Array], jax.Array]:
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

    def of_weights(self, layers: Any, carry: Carry, t: jax.Array, two: TwoBackwards) -> Carry:
        """Adds the gradients of weights of the microbatch whose backward has just reached the first stage."""
        stages = self.places.stages
        slot = _at(self.times.backward_slots, t - self.times.lag - (stages - 1))
        # Stage s took that microbatch back in tick t - s.
        places = (t - self.here) % stages

        def one(trained: Any, total: Any, rest: Any, stage: Any, place: Any) -> Any:
            held = self.of_stage(stage, slot.turn, slot.microbatch)
            mine = [jax.lax.dynamic_index_in_dim(ring, place, keepdims=False) for ring in rest]

            def layer(_: None, item: Any) -> tuple[None, Any]:
                p, at, needed = item
                return None, two.of_weights(p, held.at(at), needed)

            grads = jax.lax.scan(layer, None, (chosen_round(trained, slot.turn), held.each(), mine))[1]
            return _added(total, grads, slot.turn)

        def taken() -> Any:
            rest = [ring.swapaxes(0, 1) for ring in carry.rest]
            return self.on_every_stage(one, layers, carry.layers, rest, self.here, places)

        # All stages agree on it, so an empty slot is skipped.
        total = jax.lax.cond(slot.microbatch >= 0, taken, lambda: carry.layers) if self.times.gaps else taken()
        return carry._replace(layers=total)

    # --- loops -----------------------------------------------------------------------------------------------

    def split(self, layers: Any, stream: jax.Array) -> TwoBackwards:
        """Returns one layer's backward in two parts."""

        def backward(p: Any, held: Held, x: jax.Array, dy: jax.Array) -> tuple[Any, jax.Array]:
            p, places = jax.tree.map(lambda leaf: leaf[None], (p, held.each()))
            mine, dx = self.backward_of(p, held.at(places), x, dy)
            return jax.tree.map(lambda leaf: leaf[0], mine), dx

        def shapes(layers: Any, stream: jax.Array) -> Any:
            held = self.of_stage(jnp.int32(0), jnp.int32(0), jnp.int32(0))
            places = jax.tree.map(lambda leaf: leaf[0], held.each())
            mine = jax.tree.map(lambda leaf: leaf[0, 0, 0], layers)
            return mine, held.at(places), stream[0], stream[0]

        found = list[TwoBackwards]()

        def traced(stage: jax.Array) -> jax.Array:
            found.append(in_two(backward, *arguments))
            return stage

        with inside_stages(self.axes):
            arguments = jax.eval_shape(shapes, layers, stream)
        # Traced where it will run, mapped over stages: else what a kernel's shards save would be split over stages too.
        jax.eval_shape(lambda: self.on_every_stage(traced, self.here))
        return found[0]

    def first_carry(self, layers: Any, others: Any, stream: jax.Array, two: TwoBackwards | None) -> Carry:
        """Returns the empty carry."""
        stages, times = self.places.stages, self.times
        # Of the first stage in the first round: S - 1 ticks there and S - 1 back, the tick itself, and two rounds.
        saved = jnp.zeros((times.saved, *stream.shape), stream.dtype)
        carry = Carry(stream, saved, stream, *(_zeros(tree) for tree in (layers, others)))
        if self.places.rounds > 1:
            empty = jnp.zeros((times.returning, *stream.shape[1:]), stream.dtype)
            carry = carry._replace(returned=empty, sent_back=empty)
        if two is None:
            return carry

        def rest(layers: Any, stream: jax.Array) -> Any:
            back, first = self._of_inputs(two), jnp.int32(0)

            def of_stage(p: Any, x: Any, dy: Any, stage: Any) -> Any:
                return back(chosen_round(p, first), self.of_stage(stage, first, first), x, dy)[0]

            return self.on_every_stage(of_stage, layers, stream, stream, self.here)

        shapes = jax.eval_shape(rest, layers, stream)
        return carry._replace(rest=[jnp.zeros((stages, *shape.shape), shape.dtype) for shape in shapes])

    def run(self, params: Any) -> tuple[Any, Outputs]:
        """Runs all ticks; returns gradients shaped like `params` and the merged outputs."""
        below = params[self.name]
        specs = param_specs(self.stack)[_LAYER]
        layers = by_stage(below[_LAYER], self.places, specs)
        others = {**params, self.name: {n: leaf for n, leaf in below.items() if n != _LAYER}}
        shape, _ = jax.eval_shape(self.embed, others, jnp.int32(0))
        stream = on_stages(jnp.zeros((self.places.stages, *shape.shape), shape.dtype))
        none = jnp.zeros(shape.shape, shape.dtype)
        two = self.split(layers, stream) if self.times.split else None
        carry = self.first_carry(layers, others, stream, two)
        passed, headed = [], []

        def tick(work: frozenset[str], carry: Carry, t: jax.Array) -> tuple[Carry, Any]:
            left, of_head, arriving, before = None, None, none, carry
            if "forward" in work:
                carry, left = self.forward(layers, others, carry, t)
            # Paired, what backwards read is of the tick before, so that they may run beside the forward: each leaves
            # the other's fields alone.
            ahead, carry = carry, before if self.times.paired else carry
            if "head" in work:
                carry, arriving, of_head = self.at_head(others, carry, t)
            if "backward" in work:
                carry = self.backward(layers, others, carry, t, arriving, two)
            if "weights" in work and two is not None:
                carry = self.of_weights(layers, carry, t, two)
            carry = carry._replace(moving=ahead.moving, inputs=ahead.inputs, returned=ahead.returned)
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
        every = np.arange(self.times.microbatches)
        enters = self.times.tick(np.zeros_like(every), every, np.zeros_like(every))
        first = jax.tree.map(lambda x: x[enters], embedded)
        staged = _prefixed(collect_ticks(staged, self.places, self.times), f"{self.name}.")
        of_head = jax.tree.map(lambda *x: jnp.concatenate(x)[self.times.heads], *headed)
        outputs = _last_state(first).merge(staged).merge(_last_state(of_head))
        joined = by_layer(carry.layers, self.places, specs)
        grads = {**carry.others, self.name: {**carry.others[self.name], _LAYER: joined}}
        return jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params), outputs


def _sequences(batch: Batch) -> Sequences:
    return Sequences(positions=batch.positions, segment_ids=batch.segment_ids)


def _without_outputs(embedded: Any) -> tuple[jax.Array, jax.Array]:
    x, (share, _) = embedded
    return x, share


def _at(slots: Slots, number: jax.Array) -> Slots:
    """Returns what slots of these numbers hold (any shape, clipped to those there are)."""
    return Slots(*(jnp.take(jnp.asarray(column), number, mode="clip") for column in slots))


def _added(total: Any, new: Any, turn: jax.Array) -> Any:
    """Returns gradients [R, k, …] with those of a round added."""
    return jax.tree.map(lambda a, b: a.at[turn].add(b.astype(a.dtype)), total, new)


def _zeros_like(shapes: Any) -> Any:
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


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
