"""Weights laid out for matmuls of few rows: outputs before inputs, so that each output reads one run of memory."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import WeightForm
from kanawa.contracts.weights import StoredWeight
from kanawa.kernels.matmul import matmul
from kanawa.module import nowrap


class OutputFirst(WeightForm):
    """Stores [*inputs, *outputs] as [*outputs, *inputs] under the same path; weights with leading dimensions stay.

    For matmul kernels that prefer it (`preferred_weight_layout`). Exact: it changes where numbers lie, not what is
    computed.
    """

    @nowrap
    def specs(self, spec: ParamSpec) -> dict[str, ParamSpec]:
        """Returns the spec with its dimensions in the other order."""
        if not _turns(spec):
            return {"": spec}
        inputs, count = len(spec.fan_in_axes), len(spec.shape)

        def rotated(axes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple((axis - inputs) % count for axis in axes)

        return {
            "": dataclasses.replace(
                spec,
                shape=(*spec.shape[inputs:], *spec.shape[:inputs]),
                axes=(*spec.axes[inputs:], *spec.axes[:inputs]),
                fan_in_axes=rotated(spec.fan_in_axes),
                fan_out_axes=rotated(spec.fan_out_axes),
            )
        }

    @nowrap
    def store(self, weight: Array, spec: ParamSpec) -> dict[str, Array]:
        """Returns the weight in the other order."""
        if not _turns(spec):
            return {"": weight}
        inputs = len(spec.fan_in_axes)
        return {"": jnp.transpose(weight, (*range(inputs, weight.ndim), *range(inputs)))}

    @nowrap
    def dense(self, stored: StoredWeight, spec: ParamSpec, dtype: Any) -> Array:
        """Returns the weight in its own order."""
        weight = stored[""].astype(dtype)
        if not _turns(spec):
            return weight
        outputs = weight.ndim - len(spec.fan_in_axes)
        return jnp.transpose(weight, (*range(outputs, weight.ndim), *range(outputs)))

    def matmul(self, x: Float[Array, "..."], stored: StoredWeight, spec: ParamSpec) -> Float[Array, "..."]:
        """Returns x contracted over its trailing dimensions with the weight's last."""
        return matmul(x, stored[""], len(spec.fan_in_axes), outputs_first=_turns(spec))


def _turns(spec: ParamSpec) -> bool:
    """Returns whether inputs come first and outputs after; experts' dimension, before both, stays in place."""
    inputs = len(spec.fan_in_axes)
    return tuple(spec.fan_in_axes) == tuple(range(inputs)) and 0 < inputs < len(spec.shape)
