"""Whether what a step leaves may be saved: asked on the device, of every array, as a part of the step itself."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from kanawa_runtime.runs.imported import LARGEST_PARAMETER

_MOST_NAMED = 3


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
    # Primitives, not jnp's functions: there are three such arrays to each parameter, and each call of those is a
    # program of its own to trace.
    everywhere = tuple(range(after.ndim))
    if group == "params" and float(jnp.finfo(after.dtype).max) > LARGEST_PARAMETER:
        # Not `abs(x) > limit`: a NaN compares false.
        small = jax.lax.le(jax.lax.abs(after), jax.lax.full_like(after, LARGEST_PARAMETER))
        return jax.lax.reduce_and(small, everywhere)
    return jax.lax.reduce_and(jax.lax.is_finite(after), everywhere)
