"""The hook's answer: nothing where the shipped rule's plan fits, else the quickest of what was tried.

One quick plan is traced a mesh, with all of each layer recomputed. What other policies and slices of the batch would
take follows from it, and the best is planned once more as it will run, unless it was traced so.
"""

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from kanawa.composition.experiment import Composition
from kanawa.composition.placement import PlacementQuestion
from kanawa.contracts import GradientStrategy, RematPolicy, Workload
from kanawa.errors import KanawaError, ShardingError
from kanawa.module import Module, count_parameters
from kanawa.plugins import MeshRule
from kanawa.status import stage

from kanawa_parallel.divisibility import mesh_fits
from kanawa_parallel.passes import batch_cuts
from kanawa_parallel.plan.memory.arguments import argument_bytes, bytes_by_kind
from kanawa_parallel.plan.placement.bound import STATE_BYTES, Bound, is_plain
from kanawa_parallel.plan.placement.choices import (
    Choice,
    Modifier,
    Spread,
    kept_sets,
    pipelined,
    slices_of,
    spreads,
)
from kanawa_parallel.plan.placement.reason import reason, too_few_rows, too_large
from kanawa_parallel.plan.placement.remembered import key_of, remembered
from kanawa_parallel.plan.placement.sketch import Guess, Kept, Sketch
from kanawa_parallel.plan.quick.estimate import Estimate, estimated, keep, without_collector
from kanawa_parallel.plan.search.evaluate import ROOM
from kanawa_parallel.plan.search.space import experts_of
from kanawa_parallel.remat.policies import FullRemat

logger = logging.getLogger(__name__)

#: Modifiers of a shipped rule that placement chooses itself; it takes the others over.
_CHOSEN = ("remat", "accumulate", "offload-optimizer", "pipeline")
#: A choice has to be this much quicker than one that changes less; and no mesh is traced that could gain no more.
_GAIN, _ENOUGH = 0.01, 0.03
#: How many meshes are traced, and how many of the best choices are planned as they will run.
_TRACED, _PLANNED = 5, 3
#: How many of a mesh's choices are worth a second look: the quickest that fit, and the smallest.
_WORTH = 100
_STEP = "train_step"
_FULL: Modifier = ("remat", {"policy": "full"})
_SLICED: Modifier = ("accumulate", {"microbatches": 2})


class Unplaceable(ShardingError):
    """No mesh divides the batch over all devices of the target."""


def answer(question: PlacementQuestion) -> MeshRule | None:
    """Returns the rule for a training step; None where the shipped one's plan fits, or where nothing can be planned.

    A shipped rule that pays time for memory stays only where nothing quicker is found. Raises Unplaceable, with what
    would fit, where a batch has too few rows for the target.
    The devices of one divided machine share its memory: no placement of theirs holds more than another.
    """
    if question.target.device.divisible:
        return None
    try:
        with stage(f"placing for {question.target.selector}"), without_collector():
            placer = _Placer(question)
            return remembered(placer.key, placer.chosen)
    except Unplaceable:
        raise
    except KanawaError as error:
        logger.info("nothing was placed: %s", error)
        return None


def limit_bytes(question: PlacementQuestion) -> int:
    """Returns the memory of one of the target's devices."""
    device = question.target.device
    return device.memory_bytes // device.jax_devices_per_chip


def _planned(question: PlacementQuestion, rule: MeshRule) -> Estimate | None:
    """Returns the quick plan of the experiment with a rule; None where it can't be, which composing reports."""
    return _estimate(lambda: question.composed(rule), rule)


def _estimate(composed: Callable[[], Composition], rule: MeshRule) -> Estimate | None:
    try:
        return estimated(composed(), _STEP)
    except KanawaError as error:
        logger.info("placement: %s refused: %s", dict(rule.mesh), error)
    except Exception as error:  # noqa: BLE001 - a layer of the user's that can't be traced fails in its own run
        logger.info("placement: the step can't be traced: %r", error)
    return None


def _memory(estimate: Estimate) -> float:
    return sum(argument_bytes(estimate.program.fn, estimate.program.abstract_args).values()) + estimate.memory.peak


def _pays(rule: MeshRule | None) -> bool:
    """Returns whether a rule pays time for memory, whatever the batch: it cuts batches or sends activations away."""
    modifiers = () if rule is None else rule.modifiers
    return any(name == "accumulate" or "offload" in str(values.get("policy")) for name, values in modifiers)


class _Placer:
    """The search for one question; what the user's modifiers and the experiment itself set stays."""

    def __init__(self, question: PlacementQuestion) -> None:
        self.question, self.limit = question, limit_bytes(question)
        others = question.rule.modifiers if question.rule is not None else ()
        self.carried = tuple(modifier for modifier in others if modifier[0] not in _CHOSEN)
        first = Spread((("fsdp", question.target.jax_devices // question.target.slices),), _across(question))
        config = question.config(self.rule(first, (_FULL,)))
        self.key = key_of(question, config)
        self.model: Module = config.model.build()
        self.keeps_mesh = dict(config.execution.mesh.axes) != dict(first.axes)
        self.first = Spread(tuple(config.execution.mesh.axes.items()), tuple(config.execution.mesh.dcn_axes.items()))
        policies = [node for _, node in config.walk() if isinstance(node, RematPolicy.Config)]
        self.keeps_policy = not any(isinstance(node, FullRemat.Config) for node in policies)
        self.keeps_slices = not self._takes_slices(first) or any(n > 1 for _, n in batch_cuts(config, self.model))
        shape = config.batch_shape()
        self.rows: int = 0 if shape is None else shape.rows
        self.length: int = 0 if shape is None else shape.length
        self.parameters = count_parameters(self.model).total
        self.choices: list[Choice] = []
        #: Choices that were planned as they will run, with their rules.
        self.known: dict[Choice, MeshRule] = {}
        self.estimates: dict[Choice, Estimate] = {}
        #: Meshes that were traced.
        self.meshes: list[Spread] = []
        #: The choice that was confirmed.
        self.best: Choice | None = None

    def rule(self, spread: Spread, modifiers: Sequence[Modifier] = ()) -> MeshRule:
        """Returns a spread as a rule, with the shipped rule's other modifiers."""
        return MeshRule(
            name="placement",
            platform=self.question.target.device.platform,
            mesh=dict(spread.axes),
            dcn=dict(spread.across),
            modifiers=(*self.carried, *modifiers),
        )

    def chosen(self) -> MeshRule | None:
        """Returns the rule of the best choice, or of the one that lacks least; None where the shipped rule's plan fits,
        or where nothing could be planned.
        """
        traced, bound = 0, None
        waiting = self._spreads()
        asked = self.question.rule is None or _pays(self.question.rule)
        if not asked and not self._is_of_rule(waiting[0]):
            asked = True
            if self._by_rule() is not None:
                return None
        while waiting and traced < _TRACED:
            best = self._ordered()[:1]
            if traced and not best:
                # What leaves the most memory first.
                waiting.sort(key=lambda spread: -spread.shards)
            spread = waiting.pop(0)
            if best and (self._widens_a_loss(spread, best[0]) or (bound and bound.seconds(spread) >= _worth(best[0]))):
                continue
            usable = self._is_usable(spread)
            planned = _planned(self.question, self.rule(spread, self._full(spread))) if usable else None
            if planned is None:
                continue
            self.meshes.append(spread)
            sketch = Sketch(planned)
            if not asked and self._is_of_rule(spread):
                # Its mesh, with nothing recomputed, holds at least what the layers name.
                asked = True
                if self._all_kept(sketch) <= self.limit and self._by_rule() is not None:
                    return None
            self.choices += self._of(spread, sketch, planned)
            traced += 1
            if bound is None and is_plain(spread):
                bound = Bound(spread, sketch, self._sets(sketch), self.limit / ROOM, self.parameters)
        if not self.choices:
            self._refuse_rows()
            return None
        if not self._ordered():
            self.choices = [choice.with_optimizer_away() for choice in self.choices]
        placed = self._confirmed(traced)
        if self._rule_is_better():
            return None
        if self.best in self.estimates:
            keep(self.estimates[self.best])
        return placed

    def _refuse_rows(self) -> None:
        """Raises Unplaceable where a batch of more rows could be planned, with how many."""
        if self.keeps_mesh or not self.rows or (self.question.rule is not None and self._divides(self.question.rule)):
            return
        short = [spread for spread in self._spreads() if self.rows % spread.batch_parts]
        fitting = (s for s in sorted(short, key=lambda s: s.batch_parts) if self._divides(self.rule(s), s.batch_parts))
        for spread in itertools.islice(fitting, _TRACED):
            if self._plans(spread, spread.batch_parts):
                raise Unplaceable(too_few_rows(spread, self.question.target, self.rows))

    def _divides(self, rule: MeshRule, rows: int = 0) -> bool:
        """Returns whether the sizes divide by a rule's mesh, with a batch of so many rows, by default its own."""
        target = self.question.target
        try:
            config = self._with_rows(rule, rows)
        except KanawaError:
            return False
        return mesh_fits(config, self.model, target.jax_devices, target.slices)

    def _plans(self, spread: Spread, rows: int) -> bool:
        """Returns whether a step of so many rows can be traced on a mesh."""
        rule = self.rule(spread, self._full(spread))
        config = self._with_rows(rule, rows)
        config.freeze()
        changed = Composition("placement", config, self.question.target, rule, config.model.build())
        return _estimate(lambda: changed, rule) is not None

    def _with_rows(self, rule: MeshRule, rows: int) -> Workload.Config:
        config = cast(Workload.Config, self.question.config(rule))
        shape = config.batch_shape()
        if rows and shape is not None:
            config.set_path(shape.rows_path, rows)
        return config

    def _rule_is_better(self) -> bool:
        """Returns whether a shipped rule that pays time for memory takes hardly longer than the best choice.

        Where its mesh was traced, what it keeps and cuts was among the choices.
        """
        rule = self.question.rule
        if rule is None or not _pays(rule):
            return False
        mesh = _split(rule.mesh), _split(rule.dcn)
        if self.best is not None and any((_split(s.axes), _split(s.across)) == mesh for s in self.meshes):
            return False
        by_rule = self._by_rule()
        least = None if self.best is None else self.best.guess.seconds
        return by_rule is not None and (least is None or least > by_rule.seconds * (1 - _ENOUGH))

    def _is_of_rule(self, spread: Spread) -> bool:
        """Returns whether the shipped rule is a mesh alone, this one."""
        rule, devices = self.question.rule, self.question.target.jax_devices // self.question.target.slices
        if rule is None or self.keeps_policy or rule.modifiers != self.carried:
            return False
        given = math.prod(size for size in rule.mesh.values() if size != -1)
        mesh = {name: devices // given if size == -1 else size for name, size in rule.mesh.items()}
        return (_split(spread.axes), _split(spread.across)) == (_split(mesh), _split(rule.dcn))

    def _all_kept(self, sketch: Sketch) -> float:
        """Returns the bytes of a device that recomputes nothing of what layers name."""
        return next(iter(sketch.guesses([Kept(frozenset(sketch.tags))], [1])))[2].memory_bytes

    def _widens_a_loss(self, spread: Spread, best: Choice) -> bool:
        """Returns whether it splits matmuls further than a traced mesh on which that costs more than it gains.

        What is waited for between matmuls grows with `tensor`, and what it frees of the memory shrinks.
        """
        narrower = [s for s in self.meshes if s.narrows(spread)]
        guesses = (c.guess.seconds for c in self.choices if c.spread in narrower and self._fits(c))
        return bool(narrower) and best.spread not in narrower and min(guesses, default=0.0) > best.guess.seconds

    def _fits(self, choice: Choice) -> bool:
        return choice.guess.memory_bytes * ROOM <= self.limit

    def _full(self, spread: Spread) -> list[Modifier]:
        """Returns the modifiers with which a mesh is traced."""
        return [*pipelined(spread), *([] if self.keeps_policy else [_FULL])]

    def _sets(self, sketch: Sketch) -> list[Kept]:
        return [Kept()] if self.keeps_policy else list(kept_sets(sketch.tags))

    def _by_rule(self) -> Guess | None:
        """Returns what the shipped rule's plan takes; None without a rule, and where it doesn't fit."""
        planned = None if self.question.rule is None else _planned(self.question, self.question.rule)
        if planned is None or _memory(planned) * ROOM > self.limit:
            return None
        return Guess(planned.times.seconds.total, _memory(planned))

    def _takes_slices(self, spread: Spread) -> bool:
        """Returns whether the batch is the user's to be cut: an experiment may take its gradients otherwise."""
        try:
            config = self.question.config(self.rule(spread, (_SLICED,)))
        except KanawaError:
            return False
        cuts = [node.build().cuts() for _, node in config.walk() if isinstance(node, GradientStrategy.Config)]
        return {"microbatches": 2} in cuts

    def _spreads(self) -> list[Spread]:
        """Returns the meshes whose devices can hold the state, in order."""
        if self.keeps_mesh:
            return [self.first]
        target, state = self.question.target, self.parameters * STATE_BYTES
        every = spreads(target, state, experts_of(self.model), 0 if self.keeps_slices else self.rows)
        holding = [spread for spread in every if state / spread.shards <= self.limit]
        return holding or sorted(every, key=lambda spread: -spread.shards)

    def _is_usable(self, spread: Spread) -> bool:
        """Returns whether the model's sizes and the batch divide by a mesh, and its layers can be stages."""
        return self.keeps_mesh or self._divides(self.rule(spread, pipelined(spread)))

    def _of(self, spread: Spread, sketch: Sketch, planned: Estimate) -> list[Choice]:
        """Returns what can be kept and cut on a mesh."""
        shape = planned.prepared.composition.config.batch_shape()
        mesh = dict(planned.prepared.environment.mesh.shape) if planned.prepared.environment.mesh is not None else {}
        fixed = self.keeps_slices or shape is None or spread.microbatches > 1
        counts = [1] if fixed else slices_of(shape.rows, mesh)
        sets = self._sets(sketch)
        kinds = bytes_by_kind(argument_bytes(planned.program.fn, planned.program.abstract_args))
        optimizer = 0.0 if planned.prepared.composition.config.execution.optimizer_memory else kinds.get("optimizer", 0)
        away = Guess(2 * optimizer / sketch.host_bandwidth, -float(optimizer))
        made = [
            Choice(spread, kept, count, guess, away, sketch.fixed_bytes)
            for kept, count, guess in sketch.guesses(sets, counts)
        ]
        # The trace itself is no guess.
        for at, one in enumerate(made):
            if one.kept == Kept() and one.microbatches == 1:
                made[at] = dataclasses.replace(one, guess=Guess(planned.times.seconds.total, _memory(planned)))
                self.known[made[at]] = self.rule(spread, one.modifiers(self.keeps_policy))
                self.estimates[made[at]] = planned
        fitting = [choice for choice in made if self._fits(choice)]
        quickest = sorted(fitting, key=lambda choice: choice.guess.seconds)[:_WORTH]
        smallest = sorted(made, key=lambda choice: choice.guess.memory_bytes)[:_WORTH]
        return list(dict.fromkeys([*quickest, *smallest]))

    def _ordered(self) -> list[Choice]:
        """Returns the choices that fit: of those about as quick as the quickest the plainest comes first."""
        fitting = sorted(filter(self._fits, self.choices), key=lambda choice: choice.guess.seconds)
        least = fitting[0].guess.seconds * (1 + _GAIN) if fitting else 0.0
        near = [choice for choice in fitting if choice.guess.seconds <= least]
        plain = sorted(near, key=lambda choice: (choice.changes, choice.guess.memory_bytes))
        return [*plain, *fitting[len(near) :]]

    def _confirmed(self, traced: int) -> MeshRule:
        """Returns the rule of the best choice as it will run: what was guessed of the likeliest is planned, till the
        best is one of these.
        """
        known = self.known
        for _ in range(_PLANNED):
            ordered = self._ordered()
            if not ordered or ordered[0] in known:
                break
            choice = ordered[0]
            rule = self.rule(choice.spread, choice.modifiers(self.keeps_policy))
            planned = _planned(self.question, rule)
            self.choices.remove(choice)
            if planned is None:
                continue
            found = Guess(planned.times.seconds.total, _memory(planned))
            # What a plan takes more than was guessed, others take too: of memory those on its mesh.
            slower = max(1.0, found.seconds / choice.guess.seconds)
            larger = found.memory_bytes / choice.guess.memory_bytes if found.memory_bytes * ROOM > self.limit else 1.0
            self.choices = [
                one if one in known else one.taking(slower, larger if one.spread == choice.spread else 1.0)
                for one in self.choices
            ]
            done = dataclasses.replace(choice, guess=found)
            self.choices.append(done)
            known[done], self.estimates[done] = rule, planned
        best = next((choice for choice in self._ordered() if choice in known), None)
        self.best = best
        if best is not None:
            return _with_reason(known[best], reason(best, self._ordered(), self.limit, traced))
        nearest = min(self.choices, key=lambda choice: choice.guess.memory_bytes)
        why = too_large(nearest, self.question.target, self.length, self.limit)
        logger.warning("%s", why)
        return _with_reason(self.rule(nearest.spread, nearest.modifiers(self.keeps_policy)), why)


def _worth(best: Choice) -> float:
    """Returns the seconds from which on another mesh isn't worth a trace."""
    return best.guess.seconds * (1 - _ENOUGH)


def _split(axes: Mapping[str, int] | Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns the axes that split anything."""
    return {name: size for name, size in dict(axes).items() if size > 1}


def _with_reason(rule: MeshRule, why: str) -> MeshRule:
    return dataclasses.replace(rule, reason=why)


def _across(question: PlacementQuestion) -> tuple[tuple[str, int], ...]:
    slices = question.target.slices
    return (("data", slices),) if slices > 1 else ()
