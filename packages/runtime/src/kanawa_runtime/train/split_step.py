"""A step in two programs, for rollouts that are drawn by the step itself: forwards, and once they are rated, backwards.

The first program draws again what an engine proposed. What it leaves for the gradients, the second goes on from: the
pass that verified the rollouts is the step's own, and their log-probabilities are those that it trains by. Where
gradients are taken over microbatches, both programs are of one of them.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun
from kanawa.arrays.prng import step_key
from kanawa.arrays.shardings import replicated
from kanawa.contracts import ModelLoss, Program, RolloutBatch
from kanawa.contracts.program import Lowered, manifest
from kanawa.errors import UsageError
from kanawa.module import Loss, Outputs

#: Fields of a batch that nobody knows before its rollouts are rated.
RATED = ("loss_weights", "advantages", "sampled_logprobs", "old_logprobs", "reference_logprobs")


def unrated(batch: RolloutBatch) -> RolloutBatch:
    """Returns the batch without what nobody knows before it is rated."""
    missing: Any = dict.fromkeys(RATED)
    return batch._replace(**missing)


class Halves(NamedTuple):
    """A function in two: `first` of what is known at once, `second` of all arguments and of what the first has left.

    Both take and return flat lists; `shape` is the whole function's result. `first` returns (what is left for the
    second, the results that were asked for); what is left comes in two lists, floating point numbers first.
    """

    first: Callable[[list[Any]], tuple[list[Any], list[Any], list[Any]]]
    second: Callable[[list[Any], list[Any], list[Any]], list[Any]]
    shape: Any


def halves(function: Callable[..., tuple[Any, Any]], args: Any, is_late: list[bool], trained: int) -> Halves:
    """Cuts `function(*args) -> (result, early)` at what depends on the late ones among its flat arguments.

    The first `trained` arguments are those that gradients are taken of: `second` sees them as left by `first`. Raises
    UsageError where a result in `early` depends on a late argument.
    """
    closed, (shape, early) = jax.make_jaxpr(function, return_shape=True)(*args)
    jaxpr = closed.jaxpr
    late = {var for var, flag in zip(jaxpr.invars, is_late, strict=True) if flag}
    first: list[Any] = []
    second: list[Any] = []
    for equation in jaxpr.eqns:
        follows = any(var in late for var in equation.invars if not isinstance(var, Literal))
        (second if follows else first).append(equation)
        late.update(equation.outvars if follows else ())
    count = len(jax.tree.leaves(early))
    wanted, asked = jaxpr.outvars[: len(jaxpr.outvars) - count], jaxpr.outvars[len(jaxpr.outvars) - count :]
    if any(var in late for var in asked if not isinstance(var, Literal)):
        message = "the model's log-probabilities depend on rewards, so that rollouts.exact can't draw by them; unset it"
        raise UsageError(message)
    known = {*jaxpr.invars[:trained], *(var for equation in first for var in equation.outvars)}
    read = [*(var for equation in second for var in equation.invars), *wanted]
    left = dict.fromkeys(var for var in read if not isinstance(var, Literal) and var in known)
    floats: list[Var] = [var for var in left if jnp.issubdtype(var.aval.dtype, jnp.inexact)]
    others: list[Var] = [var for var in left if var not in floats]
    given = [var for var in jaxpr.invars if var not in left]
    places = [index for index, var in enumerate(jaxpr.invars) if var not in left]
    before = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(outvars=[*floats, *others, *asked], eqns=first), closed.consts))
    rest = jaxpr.replace(invars=[*floats, *others, *given], outvars=wanted, eqns=second)
    after = jaxpr_as_fun(ClosedJaxpr(rest, closed.consts))

    def run_first(flat: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        results = before(*flat)
        at = len(floats), len(left)
        return results[: at[0]], results[at[0] : at[1]], results[at[1] :]

    def run_second(floats: list[Any], others: list[Any], flat: list[Any]) -> list[Any]:
        results: list[Any] = after(*floats, *others, *(flat[index] for index in places))
        return results

    return Halves(run_first, run_second, shape)


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """How a global batch is cut in `count`: each of the `shards` of its rows holds a part of every microbatch."""

    count: int
    shards: int
    rows: int

    @classmethod
    def of(cls, batch: RolloutBatch, count: int) -> "Microbatches":
        """Returns how an abstract batch is cut; raises UsageError where its rows can't be."""
        ids = batch.input_ids
        rows = ids.shape[0]
        shards = 1 if ids.sharding is None else rows // ids.sharding.shard_shape(ids.shape)[0]
        if rows % (count * shards):
            message = (
                f"a batch of {rows} rows on {shards} devices can't be cut in {count} equal microbatches; make "
                f"batch_size a multiple of {count * shards}, or lower the number of microbatches"
            )
            raise UsageError(message)
        return cls(count, shards, rows)

    def cut(self, batch: Any, index: Any) -> Any:
        """Returns one microbatch; a row stays on its device."""
        if self.count == 1:
            return batch

        def part(x: jax.Array) -> jax.Array:
            parts = x.reshape(self.shards, self.count, -1, *x.shape[1:])
            mine: jax.Array = jax.lax.dynamic_index_in_dim(parts, index, 1, keepdims=False)
            return mine.reshape(-1, *x.shape[1:])

        return jax.tree.map(part, batch)

    def places(self, rows: range) -> np.ndarray:
        """Returns a process's rows by microbatch, [count, rows of one], from 0; `rows` are those of the whole batch."""
        shards = len(rows) * self.shards // self.rows
        return np.arange(len(rows)).reshape(shards, self.count, -1).swapaxes(0, 1).reshape(self.count, -1)


class SplitStep:
    """The compiled step: `forward` on rollouts, then a call with the state that it was given and the rated batch.

    A call with another state, as where a batch is trained on twice, takes the forward pass again; so it does for
    microbatches beyond the `kept` whose passes stay in memory.
    """

    def __init__(self, programs: dict[str, Any], cut: Microbatches, kept: int) -> None:
        self._programs, self.microbatches, self._most = programs, cut, kept
        #: A parameter that the last forward passes took, and what they left, by microbatch.
        self._taken: Any = None
        self._left: dict[int, Any] = {}

    def forward(
        self, params: Any, state: Any, step: Any, batch: RolloutBatch, indices: Iterable[int] | None = None
    ) -> dict[int, tuple[jax.Array, jax.Array]]:
        """Returns the targets' log-probabilities and the tokens drawn in their places of microbatches (None: all).

        Both are [rows of one, length]. What is rated of the batch doesn't matter; `unrated` is what it is of.
        """
        first = jax.tree.leaves(params)[0]
        if self._taken is not first:
            self._left.clear()
            self._taken = first
        shown = {}
        # The other way round than gradients are taken, which then begin with what is still there.
        for index in sorted(range(self.microbatches.count) if indices is None else indices, reverse=True):
            self._left.pop(index, None)
            if len(self._left) >= self._most:
                # What more passes leave may not fit.
                del self._left[max(self._left)]
            shown[index], self._left[index] = self._programs["forward"](
                params, state, step, np.int32(index), unrated(batch)
            )
        return shown

    def __call__(self, before: Any, batch: RolloutBatch) -> Any:
        """Returns the state after the update, and its report; `before` is donated."""
        if self._taken is not jax.tree.leaves(before.params)[0]:
            self._left.clear()
        programs = self._programs
        if self.microbatches.count == 1:
            result = programs["backward"](before, self._passed(0, before, batch), batch)
        else:
            totals, sums = programs["weights"](before, batch)
            for index in range(self.microbatches.count):
                left = self._passed(index, before, batch)
                sums = programs["backward"](before, left, batch, np.int32(index), totals, sums)
                del left
            result = programs["update"](before, sums, batch)
        self._taken = None
        return result

    def _passed(self, index: int, before: Any, batch: RolloutBatch) -> Any:
        """Returns what a microbatch's forward pass left, which is no longer held here."""
        if index not in self._left:
            self.forward(before.params, before.state, before.step, batch, [index])
        return self._left.pop(index)

    def memory_analysis(self) -> Any:
        """Returns the compiler's account of the second program, among whose arguments is what the first one left."""
        return self._programs["backward"].memory_analysis()


class SplitProgram:
    """The programs of `step`, a trainer's program `train_step`. Raises UsageError as `halves` does.

    Of several microbatches there are two more: the weights of the whole batch's loss terms, and the update.
    """

    def __init__(self, trainer: Any, step: Program) -> None:
        self._trainer, self._step = trainer, step
        before, batch = step.abstract_args
        count = int(np.prod([1, *trainer.gradient_strategy.cuts().values()]))
        self._cut = Microbatches.of(batch, count)
        index = jax.ShapeDtypeStruct((), jnp.int32, sharding=before.step.sharding)
        self._args = before.params, before.state, before.step, index, unrated(batch)
        trained = jax.tree.leaves(trainer.trained_part(before.params)[0])
        flags = [name in RATED for name, field in batch._asdict().items() if field is not None]
        with step.environment.active():
            part = jax.eval_shape(self._cut.cut, batch, index)
            arguments = self._split(before.params, before.state, before.step, index, part)
            is_late = [False] * (len(jax.tree.leaves(arguments)) - len(flags)) + flags
            self._halves = halves(self._loss, arguments, is_late, len(trained))
            closed, shape = jax.make_jaxpr(self._everything, return_shape=True)(*self._args)
        asked, left = shape
        self._left: Any = jax.tree.structure(left)
        # Of what gradients need, parameters are arguments of both programs, and all else is returned once.
        jaxpr, count = closed.jaxpr, len(jax.tree.leaves(asked))
        given = {id(var): index for index, var in enumerate(jaxpr.invars)}
        own = {id(var): var for var in jaxpr.outvars[count:] if id(var) not in given}
        numbers = {name: index for index, name in enumerate(own)}
        self._places = [(id(var) in given, (given | numbers)[id(var)]) for var in jaxpr.outvars[count:]]
        reduced = ClosedJaxpr(jaxpr.replace(outvars=[*jaxpr.outvars[:count], *own.values()]), closed.consts)
        self._reduced, self._asked = jaxpr_as_fun(reduced), count
        self._own = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in own.values()]

    def lower(self) -> "LoweredSplit":
        """Lowers the first program; the others need to know how that places its results."""
        program = Program("forward half", self._forward, self._args, (), None, self._step.environment)
        return LoweredSplit(program.lower(), self, manifest(self._halves.shape))

    def compiled(self, forward: Any) -> SplitStep:
        """Returns the step of the compiled first program."""
        left, environment = self._own, self._step.environment
        if environment.mesh is not None:
            placed = forward.output_shardings[1]
            left = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(left, placed, strict=True)]
        before, batch = self._step.abstract_args
        end = self._step.out_shardings
        if self._cut.count == 1:
            whole = Program("backward half", self._backward, (before, left, batch), (0,), end, environment)
            programs = {"backward": whole}
        else:
            with environment.active():
                totals, sums = self._placed(jax.eval_shape(self._weights, before, batch))
            places = jax.tree.map(lambda x: x.sharding, (totals, sums)) if environment.mesh is not None else None
            arguments = before, left, batch, self._args[3], totals, sums
            programs = {
                "weights": Program("loss weights", self._weights, (before, batch), (), places, environment),
                "backward": Program(
                    "backward half", self._added, arguments, (5,), places and places[1], environment
                ),
                "update": Program("update", self._updated, (before, sums, batch), (0,), end, environment),
            }  # fmt: skip
        compiled = {name: program.lower().compile() for name, program in programs.items()}
        kept = 1 if self._cut.count == 1 else self._trainer.config.rollouts.num_kept
        return SplitStep({"forward": forward, **compiled}, self._cut, kept)

    def _placed(self, results: Any) -> Any:
        """Returns abstract results of `_weights` with their places: gradients are where their parameters are."""
        mesh = self._step.environment.mesh
        if mesh is None:
            return results
        totals, (gradients, outputs) = results
        whole = replicated(mesh)
        trained, _ = self._trainer.trained_part(self._step.abstract_args[0].params)

        def put(x: Any, sharding: Any) -> Any:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        totals, outputs = jax.tree.map(lambda x: put(x, whole), (totals, outputs))
        return totals, (jax.tree.map(lambda x, p: put(x, p.sharding), gradients, trained), outputs)

    def _split(self, params: Any, state: Any, step: Any, index: Any, batch: RolloutBatch) -> tuple[Any, ...]:
        """Returns the arguments of `_loss`; `batch` is a microbatch."""
        trained, loss = self._trainer.trained_part(params)
        return trained, loss.fixed or {}, state, step, index, batch

    def _loss(self, trained: Any, fixed: Any, state: Any, step: Any, index: Any, batch: RolloutBatch) -> Any:
        loss = ModelLoss(self._trainer.model, fixed, emit=("**.logprobs", "**.choices"))
        key = step_key(self._trainer.config.seed, step)
        key = key if self._cut.count == 1 else jax.random.fold_in(key, index)
        outputs = loss(trained, state, batch, key)
        found = {path.rpartition(".")[2]: x for path, x in outputs.emitted.items()}
        return dataclasses.replace(outputs, emitted={}), (found["logprobs"], found["choices"])

    def _everything(self, params: Any, state: Any, step: Any, index: Any, batch: RolloutBatch) -> Any:
        """Returns what the first program shows, and all that the second needs of it."""
        batch = self._cut.cut(batch, index)
        ignored = jnp.zeros(batch.input_ids.shape, jnp.float32)
        _, whole = self._step.abstract_args
        batch = batch._replace(**{name: ignored for name in RATED if getattr(whole, name) is not None})
        trained, *rest = self._split(params, state, step, index, batch)

        def run(trained: Any) -> tuple[list[Any], Any]:
            floats, others, asked = self._halves.first(jax.tree.leaves((trained, *rest)))
            return floats, (others, asked)

        floats, backward, (others, asked) = jax.vjp(run, trained, has_aux=True)
        return tuple(self._as_rows(x) for x in asked), (floats, others, backward)

    def _as_rows(self, x: jax.Array) -> jax.Array:
        """Has [rows, length] placed as rows of a batch are."""
        sharding = self._step.abstract_args[1].input_ids.sharding
        return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding)

    def _forward(self, params: Any, state: Any, step: Any, index: Any, batch: RolloutBatch) -> Any:
        results = self._reduced(*jax.tree.leaves((params, state, step, index, batch)))
        return tuple(results[: self._asked]), list(results[self._asked :])

    def _backward(self, before: Any, left: list[Any], batch: RolloutBatch) -> Any:
        gradients, outputs = self._gradients(before, left, batch, jnp.int32(0), Outputs.total_loss)
        return self._trainer.updated(before, batch, gradients, outputs)

    def _gradients(
        self, before: Any, left: list[Any], batch: RolloutBatch, index: Any, total: Callable[[Outputs], jax.Array]
    ) -> tuple[Any, Outputs]:
        """Returns a microbatch's gradients of a number of its scaled outputs, and those."""
        taken = jax.tree.leaves((before.params, before.state, before.step, index, unrated(batch)))
        leaves = [(taken if is_given else left)[place] for is_given, place in self._places]
        floats, others, backward = jax.tree.unflatten(self._left, leaves)
        part = self._cut.cut(batch, index)
        flat = jax.tree.leaves(self._split(before.params, before.state, before.step, index, part))
        scale = self._trainer.rule.loss_scale(before.opt)

        def of(floats: list[Any]) -> tuple[jax.Array, Outputs]:
            results = self._halves.second(floats, others, flat)
            outputs: Outputs = jax.tree.unflatten(jax.tree.structure(self._halves.shape), results)
            outputs = outputs if scale is None else outputs.scaled(scale)
            return total(outputs), outputs

        cotangents, outputs = jax.grad(of, has_aux=True)(floats)
        (gradients,) = backward(cotangents)
        return gradients, outputs

    # --- several microbatches, as `accumulate` takes their gradients ------------------------------------------

    def _weights(self, before: Any, batch: RolloutBatch) -> Any:
        """Returns the weight of each loss term over the whole batch, and sums of nothing."""

        def one(index: jax.Array) -> dict[str, jax.Array]:
            part = self._cut.cut(batch, index)
            outputs, _ = self._loss(*self._split(before.params, before.state, before.step, index, part))
            return {path: term.weight for path, term in outputs.losses.items()}

        # Where they depend on the batch alone, as token counts do, XLA drops the model from this loop.
        totals = jax.tree.map(lambda w: jnp.sum(w, 0), jax.lax.map(one, jnp.arange(self._cut.count)))
        trained, _ = self._trainer.trained_part(before.params)
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), trained)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), dataclasses.replace(self._halves.shape, kernels=()))
        return totals, (zeros, empty)

    def _added(
        self, before: Any, left: list[Any], batch: RolloutBatch, index: Any, totals: Any, sums: tuple[Any, Outputs]
    ) -> tuple[Any, Outputs]:
        """Returns the sums with a microbatch's part of the whole batch's gradients, fp32, and its outputs."""

        def share(outputs: Outputs) -> jax.Array:
            parts = (Loss(t.total, totals[path], t.coefficient).value() for path, t in outputs.losses.items())
            return sum(parts, jnp.zeros((), jnp.float32))

        new, outputs = self._gradients(before, left, batch, index, share)
        gradients = jax.tree.map(lambda x, n: x + n.astype(jnp.float32), sums[0], new)
        return gradients, dataclasses.replace(sums[1].merge(outputs), kernels=())

    def _updated(self, before: Any, sums: tuple[Any, Outputs], batch: RolloutBatch) -> Any:
        trained, _ = self._trainer.trained_part(before.params)
        gradients = jax.tree.map(lambda g, p: g.astype(p.dtype), sums[0], trained)
        outputs = dataclasses.replace(sums[1], kernels=self._halves.shape.kernels)
        return self._trainer.updated(before, batch, gradients, outputs)


@dataclasses.dataclass(frozen=True)
class LoweredSplit:
    """The lowered first program of a step, and what lowers the others."""

    forward: Lowered
    program: SplitProgram
    kernels: tuple[Any, ...]

    def compile(self) -> SplitStep:
        """Returns the compiled step."""
        return self.program.compiled(self.forward.compile())
