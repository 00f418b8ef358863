"""A step in two programs, for rollouts that are drawn by the step itself: forwards, and once they are rated, backwards.

The first program draws again what an engine proposed. What it leaves for the gradients, the second goes on from: the
pass that verified the rollouts is the step's own, and their log-probabilities are those that it trains by.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun
from kanawa.arrays.prng import step_key
from kanawa.contracts import ModelLoss, Program, RolloutBatch
from kanawa.contracts.program import Lowered, manifest
from kanawa.errors import UsageError
from kanawa.module import Outputs

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


class SplitStep:
    """The compiled step: `forward` on rollouts, then a call with the state that it was given and the rated batch.

    A call with another state, as where a batch is trained on twice, takes the forward pass again.
    """

    def __init__(self, forward: Any, backward: Any) -> None:
        self._forward, self._backward = forward, backward
        #: A parameter that the last forward pass took, and what that left.
        self._kept: tuple[Any, Any] | None = None

    def forward(self, params: Any, state: Any, step: Any, batch: RolloutBatch) -> tuple[jax.Array, jax.Array]:
        """Returns the targets' log-probabilities and the tokens drawn in their places, [rows, length]; keeps the rest.

        What is rated of the batch doesn't matter; `unrated` is what it is of.
        """
        # What two passes leave may not fit.
        self._kept = None
        (logprobs, choices), left = self._forward(params, state, step, unrated(batch))
        self._kept = jax.tree.leaves(params)[0], left
        return logprobs, choices

    def __call__(self, before: Any, batch: RolloutBatch) -> Any:
        """Returns the state after the update, and its report; `before` is donated."""
        if self._kept is None or self._kept[0] is not jax.tree.leaves(before.params)[0]:
            self.forward(before.params, before.state, before.step, batch)
        assert self._kept is not None
        (_, left), self._kept = self._kept, None
        return self._backward(before, left, batch)

    def memory_analysis(self) -> Any:
        """Returns the compiler's account of the second program, among whose arguments is what the first one left."""
        return self._backward.memory_analysis()


class SplitProgram:
    """The two programs of `step`, a trainer's program `train_step`. Raises UsageError as `halves` does."""

    def __init__(self, trainer: Any, step: Program) -> None:
        self._trainer, self._step = trainer, step
        before, batch = step.abstract_args
        self._args = before.params, before.state, before.step, unrated(batch)
        trained = jax.tree.leaves(trainer.trained_part(before.params)[0])
        names = [name for name, field in batch._asdict().items() if field is not None]
        flags = [name in RATED for name in names]
        with step.environment.active():
            arguments = self._split(before.params, before.state, before.step, batch)
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
        """Lowers the first program; the second needs to know how that places its results."""
        program = Program("forward half", self._forward, self._args, (), None, self._step.environment)
        return LoweredSplit(program.lower(), self, manifest(self._halves.shape))

    def backward(self, placed: Any) -> Program:
        """Returns the second program, for what the first one leaves where `placed` says; None: on one device."""
        left = self._own
        if placed is not None:
            left = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(left, placed, strict=True)]
        before, batch = self._step.abstract_args
        arguments = before, left, batch
        step = self._step
        return Program("backward half", self._backward, arguments, (0,), step.out_shardings, step.environment)

    def _split(self, params: Any, state: Any, step: Any, batch: RolloutBatch) -> tuple[Any, ...]:
        """Returns the arguments of `_loss`."""
        trained, loss = self._trainer.trained_part(params)
        return trained, loss.fixed or {}, state, step, batch

    def _loss(self, trained: Any, fixed: Any, state: Any, step: Any, batch: RolloutBatch) -> Any:
        loss = ModelLoss(self._trainer.model, fixed, emit=("**.logprobs", "**.choices"))
        outputs = loss(trained, state, batch, step_key(self._trainer.config.seed, step))
        found = {path.rpartition(".")[2]: x for path, x in outputs.emitted.items()}
        return dataclasses.replace(outputs, emitted={}), (found["logprobs"], found["choices"])

    def _everything(self, params: Any, state: Any, step: Any, batch: RolloutBatch) -> Any:
        """Returns what the first program shows, and all that the second needs of it."""
        ignored = jnp.zeros(batch.input_ids.shape, jnp.float32)
        _, whole = self._step.abstract_args
        batch = batch._replace(**{name: ignored for name in RATED if getattr(whole, name) is not None})
        trained, *rest = self._split(params, state, step, batch)

        def run(trained: Any) -> tuple[list[Any], Any]:
            floats, others, asked = self._halves.first(jax.tree.leaves((trained, *rest)))
            return floats, (others, asked)

        floats, backward, (others, asked) = jax.vjp(run, trained, has_aux=True)
        return tuple(asked), (floats, others, backward)

    def _forward(self, params: Any, state: Any, step: Any, batch: RolloutBatch) -> Any:
        results = self._reduced(*jax.tree.leaves((params, state, step, batch)))
        return tuple(results[: self._asked]), list(results[self._asked :])

    def _backward(self, before: Any, left: list[Any], batch: RolloutBatch) -> Any:
        taken = jax.tree.leaves((before.params, before.state, before.step, unrated(batch)))
        leaves = [(taken if is_given else left)[place] for is_given, place in self._places]
        floats, others, backward = jax.tree.unflatten(self._left, leaves)
        flat = jax.tree.leaves(self._split(before.params, before.state, before.step, batch))
        scale = self._trainer.rule.loss_scale(before.opt)

        def total(floats: list[Any]) -> tuple[jax.Array, Outputs]:
            results = self._halves.second(floats, others, flat)
            outputs: Outputs = jax.tree.unflatten(jax.tree.structure(self._halves.shape), results)
            outputs = outputs if scale is None else outputs.scaled(scale)
            return outputs.total_loss(), outputs

        cotangents, outputs = jax.grad(total, has_aux=True)(floats)
        (gradients,) = backward(cotangents)
        return self._trainer.updated(before, batch, gradients, outputs)


@dataclasses.dataclass(frozen=True)
class LoweredSplit:
    """The lowered first program of a step, and what lowers the second."""

    forward: Lowered
    program: SplitProgram
    kernels: tuple[Any, ...]

    def compile(self) -> SplitStep:
        """Returns the compiled step."""
        forward = self.forward.compile()
        placed = None if self.forward.environment.mesh is None else forward.output_shardings[1]
        return SplitStep(forward, self.program.backward(placed).lower().compile())
