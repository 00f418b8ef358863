"""What a step reports to the host: one small vector, which takes one transfer, and whether its state is sound."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.contracts import SOURCE_LOSS
from kanawa.module import Last, Loss, Mean, Metric, Outputs

from kanawa_runtime.runs.imported import LARGEST_PARAMETER

_MOST_NAMED = 3


def _source_of(path: str) -> int | None:
    """Returns which source a metric is the loss of; None for any other metric."""
    name = path.rpartition(".")[2]
    return int(name.removeprefix(SOURCE_LOSS)) if name.startswith(SOURCE_LOSS) else None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Soundness:
    """One boolean an array, `unsound`, true where it can't be trained on; `names` are "group: path" in that order."""

    unsound: jax.Array
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(
        cls, after: Mapping[str, Mapping[str, jax.Array]], before: Mapping[str, Mapping[str, jax.Array]]
    ) -> "Soundness":
        """Looks at the floating-point arrays of each group, {"params": {path: array}}.

        A scalar that is infinite before the step as well is the layer's or optimizer's own, such as a best value that
        begins there. An array has no such excuse.
        """
        names, flags = [], []
        for group, leaves in after.items():
            for path, leaf in leaves.items():
                if jnp.issubdtype(leaf.dtype, jnp.floating):
                    names.append(f"{group}: {path}")
                    flags.append(_sound(group, leaf, before[group][path]))
        return cls(~jnp.stack(flags) if flags else jnp.zeros((0,), jnp.bool_), tuple(names))

    def problem(self) -> str:
        """Returns the unsound arrays as text; empty where there are none. Waits for the step."""
        bad = [self.names[index] for index in np.flatnonzero(np.asarray(self.unsound))]
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        return ", ".join(bad[:_MOST_NAMED]) + more


def _sound(group: str, after: jax.Array, before: jax.Array) -> jax.Array:
    # Larger arrays are looked at without their old value: to keep that alive beside the new one, which takes its
    # memory, XLA would copy it.
    if after.ndim == 0:
        return jnp.isfinite(after) | (jnp.isinf(after) & jnp.isinf(before))
    # A sum is finite only where all numbers are, and is one pass over memory on every device; a test of each number is
    # not. What has a sum or a sum of squares beyond fp32 can't be computed with either.
    # Primitives, not jnp's functions: there are three such arrays to each parameter, and each call of those is a
    # program of its own to trace.
    everywhere = tuple(range(after.ndim))
    numbers = jax.lax.convert_element_type(after, jnp.float32) if after.dtype.itemsize < 4 else after
    if group == "params" and float(jnp.finfo(after.dtype).max) > LARGEST_PARAMETER:
        squares = jax.lax.reduce_sum(jax.lax.mul(numbers, numbers), everywhere)
        # Not `squares > limit`: a NaN compares false.
        return jax.lax.le(squares, jax.lax.full_like(squares, LARGEST_PARAMETER**2))
    return jax.lax.is_finite(jax.lax.reduce_sum(numbers, everywhere))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepReport:
    """All metrics and losses of a step as fp32 sums in `values`; `layout` says which metric owns which of them.

    `manifest` is an Outputs without arrays: it carries the kernel choices of the lowered step. `primary` is the
    name of the loss term that says how good the model is. `soundness` says whether the step's result may be saved.
    """

    values: jax.Array
    manifest: Outputs
    layout: tuple[tuple[str, type, int], ...] = dataclasses.field(metadata={"static": True})
    primary: str | None = dataclasses.field(default=None, metadata={"static": True})
    soundness: Soundness | None = None

    @classmethod
    def of(
        cls, outputs: Outputs, extra: Mapping[str, Metric] | None = None, soundness: Soundness | None = None
    ) -> "StepReport":
        """Packs the outputs' losses and metrics, and `extra` metrics by name."""
        entries: dict[str, Any] = {**outputs.losses, **outputs.metrics, **(extra or {})}
        arrays: list[jax.Array] = []
        layout = []
        for name, entry in sorted(entries.items()):
            leaves = jax.tree.leaves(entry)
            layout.append((name, type(entry), len(leaves)))
            arrays += [jnp.asarray(leaf, jnp.float32).reshape(()) for leaf in leaves]
        values = jnp.stack(arrays) if arrays else jnp.zeros((0,), jnp.float32)
        return cls(values, Outputs(kernels=outputs.kernels), tuple(layout), outputs.primary_loss(), soundness)

    @classmethod
    def of_training(cls, outputs: Outputs, extra: Mapping[str, Metric], soundness: Soundness) -> "StepReport":
        """Packs a training step: `loss` is the primary one, `total_loss` what was differentiated, if that differs."""
        name, total = outputs.primary_loss(), Last(outputs.total_loss())
        losses: dict[str, Metric] = {"loss": total}
        if name is not None:
            primary = outputs.losses[name]
            is_all = len(outputs.losses) == 1 and isinstance(primary.coefficient, float) and primary.coefficient == 1.0
            if not is_all:
                losses = {"loss": Last(dataclasses.replace(primary, coefficient=1.0).value()), "total_loss": total}
        return cls.of(outputs, {**losses, **extra}, soundness)

    @property
    def helpers(self) -> tuple[str, ...]:
        """The names of the loss terms besides the primary one."""
        return tuple(name for name, kind, _ in self.layout if kind is Loss and name != self.primary)

    def is_ready(self) -> bool:
        """Whether the device has finished the step."""
        values: Any = self.values
        return bool(values.is_ready())

    def read(self, values: np.ndarray | None = None) -> dict[str, float]:
        """Returns each metric's number, divided here, on the host; loss terms without their coefficient.

        `values` may be the sum of several steps' vectors, as in an evaluation. Waits for the step to finish.
        """
        sums = np.asarray(self.values if values is None else values)
        numbers: dict[str, float] = {}
        at = 0
        for name, kind, count in self.layout:
            part = sums[at : at + count]
            at += count
            if _source_of(name) is not None:
                continue
            ratio = kind is Loss or count > 1
            numbers[name] = float(part[0] / part[1]) if ratio and part[1] else float(part[0])
        return numbers

    def own_means(self, values: np.ndarray, *, of_loss: bool = False) -> dict[str, float]:
        """Returns the means that the model itself recorded, not its layers, such as an accuracy; and its `loss`."""
        own = {name: name.removeprefix("loss.") if of_loss else name for name, kind, _ in self.layout if kind is Mean}
        return {own[name]: number for name, number in self.read(values).items() if "." not in own.get(name, ".")}

    def by_source(self, names: Sequence[str], values: np.ndarray | None = None) -> dict[str, dict[str, float]]:
        """Returns the loss and the tokens of each source that gave any, by name: {} of a step without a mixture."""
        sums = np.asarray(self.values if values is None else values)
        losses: dict[str, float] = {}
        tokens: dict[str, float] = {}
        at = 0
        for path, _, count in self.layout:
            source = _source_of(path)
            if source is not None and sums[at + 1]:
                losses[names[source]] = float(sums[at] / sums[at + 1])
                tokens[names[source]] = float(sums[at + 1])
            at += count
        return {"loss_by_source": losses, "tokens_by_source": tokens} if losses else {}

    def main_loss(self, values: np.ndarray | None = None) -> tuple[float, float]:
        """Returns (sum, weight) of the primary loss; zeros for a step that has no loss."""
        numbers = np.asarray(self.values if values is None else values)
        at = 0
        for name, kind, count in self.layout:
            if kind is Loss and name == self.primary:
                return float(numbers[at]), float(numbers[at + 1])
            at += count
        return 0.0, 0.0
