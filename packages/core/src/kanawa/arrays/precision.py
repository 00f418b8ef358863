"""Precision policy: the dtypes of computation and of accumulation; parameters are stored in fp32."""

import dataclasses

import jax
import jax.numpy as jnp

from kanawa.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Precision:
    """dtype names: `compute` of layers, `accumulate` of reductions such as the loss and gradient sums."""

    compute: str = "float32"
    accumulate: str = "float32"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name = getattr(self, field.name)
            try:
                # Without JAX's switch for 64 bits, float64 is cut short in silence.
                whole = jax.dtypes.canonicalize_dtype(name) == jnp.dtype(name)
                floating = whole and jnp.issubdtype(jnp.dtype(name), jnp.floating)
            except TypeError:
                floating = False
            if not floating:
                message = (
                    f"precision.{field.name} is {name!r}, which is not a floating dtype that JAX keeps whole here; "
                    "use 'float32' or 'bfloat16'"
                )
                raise ConfigError(message)
