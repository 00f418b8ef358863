"""Inputs of layers under the kit: plain tokens, and rows that know their segments."""

from typing import Any

import jax
import jax.numpy as jnp
from kanawa.contracts import Sequences
from kanawa.testing.layer import LayerConformance


class OnTokens(LayerConformance):
    """Layers that take [batch, length, 16] activations."""

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        return (jax.random.normal(key, (2, 6, 16)),)


class WithSequences(LayerConformance):
    """Layers that are also told about sequences: two packed segments and padding."""

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        segments = jnp.array([[1, 1, 1, 2, 2, 0]] * 2)
        positions = jnp.array([[0, 1, 2, 0, 1, 0]] * 2)
        return jax.random.normal(key, (2, 6, 16)), Sequences(positions, segments)
