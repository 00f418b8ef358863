"""What a step tells the host: one small vector, so that reading it costs one transfer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.module import Loss, Metric, Outputs

from kanawa_runtime.train.soundness import Soundness


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
            ratio = kind is Loss or count > 1
            numbers[name] = float(part[0] / part[1]) if ratio and part[1] else float(part[0])
        return numbers

    def main_loss(self, values: np.ndarray | None = None) -> tuple[float, float]:
        """Returns (sum, weight) of the primary loss; zeros for a step that has no loss."""
        numbers = np.asarray(self.values if values is None else values)
        at = 0
        for name, kind, count in self.layout:
            if kind is Loss and name == self.primary:
                return float(numbers[at]), float(numbers[at + 1])
            at += count
        return 0.0, 0.0
