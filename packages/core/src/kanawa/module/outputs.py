"""Outputs: everything a call leaves behind besides its result, returned explicitly and merged by path."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from kanawa.errors import ContextError, ModuleError
from kanawa.module.emission import Wanted
from kanawa.module.metrics import Metric


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loss:
    """One term of the training loss, `coefficient * total / weight`, mergeable because it isn't divided yet.

    `primary` says that this term is what the model is for, and others only help: progress, evaluations and reports
    show it, without its coefficient.
    """

    total: jax.Array
    weight: jax.Array
    coefficient: float | jax.Array = 1.0
    primary: bool = dataclasses.field(default=False, metadata={"static": True})

    def value(self) -> jax.Array:
        """Returns the term, fp32; 0 where nothing has weight."""
        # A batch of padding alone has total and weight 0: 0 / 1e-9 and its gradient are 0, where 0 / 0 would end the
        # run.
        return self.coefficient * self.total / jnp.maximum(self.weight, 1e-9)

    def merge(self, other: "Loss") -> "Loss":
        """Returns the term over both parts; they carry the same coefficient."""
        return Loss(self.total + other.total, self.weight + other.weight, other.coefficient, other.primary)

    def reduce_leading(self) -> "Loss":
        """Returns the term over all slices along the leading axis."""
        # A scan stacks it like everything else, and it is the same in every iteration.
        coefficient = jnp.asarray(self.coefficient)[-1] if jnp.ndim(self.coefficient) else self.coefficient
        return Loss(jnp.sum(self.total, 0), jnp.sum(self.weight, 0), coefficient, self.primary)

    def across(self, axis_names: tuple[str, ...]) -> "Loss":
        """Returns the term over all shards of a shard_map."""
        total, weight = jax.lax.psum((self.total, self.weight), axis_names)
        return dataclasses.replace(self, total=total, weight=weight)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outputs:
    """Flat dictionaries keyed by path relative to the functional's root, and the kernels chosen on the way.

    `kernels` is static: it lives in the tree structure, so a cached trace still carries its manifest. `offered` are
    values on their way out of a transform to modules that run later; a finished call has none.
    """

    metrics: dict[str, Metric] = dataclasses.field(default_factory=dict)
    losses: dict[str, Loss] = dataclasses.field(default_factory=dict)
    state: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
    emitted: dict[str, Any] = dataclasses.field(default_factory=dict)
    kernels: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})
    offered: dict[str, Any] = dataclasses.field(default_factory=dict)

    def total_loss(self) -> jax.Array:
        """Returns the sum of all loss terms, fp32 scalar."""
        return sum((loss.value() for loss in self.losses.values()), jnp.zeros((), jnp.float32))

    def primary_loss(self) -> str | None:
        """Returns the path of the term that says how good the model is; None without any term.

        Raises ModuleError where there are several terms and none is declared primary.
        """
        primary = [path for path, loss in self.losses.items() if loss.primary]
        if not primary and len(self.losses) > 1:
            message = (
                f"the model adds the loss terms {', '.join(sorted(self.losses))}, and declares none of them primary; "
                f"write add_loss(…, primary=True) for the one that progress and evaluations are to show"
            )
            raise ModuleError(message)
        return min(primary or self.losses, default=None)

    def scaled(self, factor: jax.Array) -> "Outputs":
        """Returns the outputs with every loss term multiplied, through its coefficient."""
        losses = {
            path: dataclasses.replace(loss, coefficient=loss.coefficient * factor) for path, loss in self.losses.items()
        }
        return dataclasses.replace(self, losses=losses)

    def merge(self, other: "Outputs") -> "Outputs":
        """Returns the outputs of two parts of one computation: sums add, later state and emissions win."""
        return Outputs(
            metrics=_merge_by_path(self.metrics, other.metrics),
            losses=_merge_by_path(self.losses, other.losses),
            state={**self.state, **other.state},
            emitted={**self.emitted, **other.emitted},
            kernels=counted(self.kernels + other.kernels),
        )

    def repeated(self, times: int) -> "Outputs":
        """Returns the outputs with each kernel's calls counted `times` times, as of a loop's body."""
        return dataclasses.replace(self, kernels=_with_counts({c: c.count * times for c in self.kernels}))

    def reduce_leading(self) -> "Outputs":
        """Returns the outputs of a scan or vmap: metrics and losses reduced, state and emissions stacked."""
        return dataclasses.replace(
            self,
            metrics={path: metric.reduce_leading() for path, metric in self.metrics.items()},
            losses={path: loss.reduce_leading() for path, loss in self.losses.items()},
        )

    def across(self, axis_names: tuple[str, ...]) -> "Outputs":
        """Returns metrics and losses summed over the shards of a shard_map."""
        return dataclasses.replace(
            self,
            metrics={path: metric.across(axis_names) for path, metric in self.metrics.items()},
            losses={path: loss.across(axis_names) for path, loss in self.losses.items()},
        )


def counted(choices: Iterable[Any]) -> tuple[Any, ...]:
    """Returns each kernel choice once, with the calls of equal ones added up."""
    counts: dict[Any, int] = {}
    for choice in choices:
        counts[choice] = counts.get(choice, 0) + choice.count
    return _with_counts(counts)


def _with_counts(counts: Mapping[Any, int]) -> tuple[Any, ...]:
    return tuple(
        choice if choice.count == count else dataclasses.replace(choice, count=count)
        for choice, count in counts.items()
    )


def _merge_by_path(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for path, value in second.items():
        merged[path] = merged[path].merge(value) if path in merged else value
    return merged


class Collector:
    """Gathers the outputs of one trace; refuses a second value under one path, except of state.

    State belongs to a module, not to a call: a later update replaces an earlier one. `before` are the updates
    made outside of this trace, which reads see and which are not among its outputs; `inherited` are the offers of the
    traces around this one, made before it began.
    """

    def __init__(
        self,
        wanted: Wanted | None = None,
        before: Mapping[str, Any] | None = None,
        inherited: Mapping[str, Any] | None = None,
    ) -> None:
        self.wanted = Wanted() if wanted is None else wanted
        self.before: dict[str, Any] = dict(before or {})
        self.inherited = dict(inherited or {})
        self.offered: dict[str, Any] = {}
        self.metrics: dict[str, Metric] = {}
        self.losses: dict[str, Loss] = {}
        self.state: dict[str, jax.Array] = {}
        self.emitted: dict[str, Any] = {}
        #: Each kernel choice with the number of its calls.
        self.kernels: dict[Any, int] = {}
        #: Which call (an opaque token) drew random keys under a path: a second one would draw the same ones.
        self.drawn_by: dict[str, object] = {}

    def offers(self) -> dict[str, Any]:
        """Returns what modules that ran before offer, the latest under each name."""
        return {**self.inherited, **self.offered}

    def put(self, kind: str, path: str, value: Any) -> None:
        """Stores `value` under `path`; raises ContextError where the path already has one."""
        recorded = getattr(self, kind)
        if path in recorded:
            raise ContextError(twice(path, kind))
        # A sum of losses calls several modules that would each be primary alone: the first one called is.
        if kind == "losses" and value.primary and any(loss.primary for loss in self.losses.values()):
            value = dataclasses.replace(value, primary=False)
        recorded[path] = value

    def latest(self, path: str) -> Any:
        """Returns the newest update of a state array, or None where there was none."""
        return self.state.get(path, self.before.get(path))

    def updates(self) -> dict[str, Any]:
        """Returns the newest update of every state array that has one."""
        return {**self.before, **self.state}

    def updates_below(self, home: str) -> dict[str, Any]:
        """Returns the newest updates of a module and all below it, by path relative to that module."""
        prefix = f"{home}." if home else ""
        return {path.removeprefix(prefix): x for path, x in self.updates().items() if path.startswith(prefix)}

    def absorb(self, outputs: Outputs, *, continued: bool = False) -> None:
        """Adds the outputs that a wrapped transform returned; `continued` joins them to those of earlier layers."""
        self.state.update(outputs.state)
        for choice in outputs.kernels:
            self.kernels[choice] = self.kernels.get(choice, 0) + choice.count
        self.offered.update(outputs.offered)
        if continued:
            self._join(outputs)
            return
        for kind in ("metrics", "losses", "emitted"):
            for path, value in getattr(outputs, kind).items():
                self.put(kind, path, value)

    def _join(self, outputs: Outputs) -> None:
        self.metrics = _merge_by_path(self.metrics, outputs.metrics)
        self.losses = _merge_by_path(self.losses, outputs.losses)
        for path, value in outputs.emitted.items():
            if path in self.emitted:
                # Windows of a stack come in order of their layers, each emission with a layer axis: one behind the
                # other.
                value = jax.tree.map(lambda *parts: jnp.concatenate(parts), self.emitted[path], value)
            self.emitted[path] = value

    def outputs(self, *, offers: bool = False) -> Outputs:
        """Returns what was gathered, with this trace's own offers where they may leave it."""
        return Outputs(
            dict(self.metrics),
            dict(self.losses),
            dict(self.state),
            dict(self.emitted),
            _with_counts(self.kernels),
            dict(self.offered) if offers else {},
        )


def twice(path: str, kind: str) -> str:
    """Returns the error text for a module called twice in one context."""
    return (
        f"{path!r} already has a value among the {kind} of this call: the module was called twice, and the second "
        f"call would overwrite or repeat the first; give the second call a name: `with kn.call_name('second'): …`"
    )
