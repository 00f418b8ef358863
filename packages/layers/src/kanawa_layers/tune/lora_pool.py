"""Many LoRA adapters side by side, of which each token takes one: for serving them together."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Float
from kanawa.contracts import ADAPTERS, AdapterPool
from kanawa.errors import ModuleError
from kanawa.kernels.matmul import matmul


class LoRAPool(AdapterPool):
    """y + x @ lora_a[s] @ lora_b[s] with the slot s of each token; nothing where there is none.

    All slots' hidden units are computed and those of other slots set to zero: two matmuls with small matrices, where
    gathering each token's own factors would move more memory than the projection itself. Zeros add exactly nothing, so
    the other tokens of a batch change no result.
    """

    def setup(self) -> None:
        """Declares `lora_a` [*inputs, slots, rank] and `lora_b` [slots, rank, *outputs], all zero."""
        cfg = self.config
        num_inputs = len(cfg.input_shape)
        fixed: dict[str, Any] = {"init": kn.zeros, "weight_decay": 0.0, "trainable": False}
        self.add_param(
            "lora_a",
            (*cfg.input_shape, cfg.slots, cfg.rank),
            axes=(*cfg.axes[:num_inputs], "adapters", None),
            fan_in_axes=tuple(range(num_inputs)),
            **fixed,
        )
        self.add_param(
            "lora_b",
            (cfg.slots, cfg.rank, *cfg.output_shape),
            axes=("adapters", None, *cfg.axes[num_inputs:]),
            fan_in_axes=(0, 1),
            **fixed,
        )

    def forward(
        self, x: Float[Array, "..."], y: Float[Array, "..."], weight: Callable[[], Float[Array, "..."]]
    ) -> Float[Array, "..."]:
        """Returns y with each token's change added; raises ModuleError where x isn't one row a token."""
        del weight
        slots = self.offered(ADAPTERS, None)
        if slots is None:
            return y
        cfg = self.config
        rows = x.shape[: x.ndim - len(cfg.input_shape)]
        if rows != slots.shape:
            message = (
                f"{self.path}: the input has {list(rows)} tokens, but adapters are assigned to {list(slots.shape)}; "
                "an adapter pool works only on projections of the whole stream: leave this one out of `targets`"
            )
            raise ModuleError(message)
        # Slot 0 means no adapter: one_hot of -1 is all false.
        chosen = jax.nn.one_hot(slots - 1, cfg.slots, dtype=jnp.bool_)
        hidden = matmul(x, self.param("lora_a"), len(cfg.input_shape))
        hidden = jnp.where(chosen[..., None], hidden, jnp.zeros((), hidden.dtype))
        return y + matmul(hidden, self.param("lora_b"), 2)

    @kn.nowrap
    def merged(self, params: Mapping[str, Array], weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the weight unchanged: without a slot there is no adapter to merge."""
        del params
        return weight

    @kn.nowrap
    def slot(self, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `lora_a` [*inputs, rank] and `lora_b` [rank, *outputs] of one slot, filled up with zeros."""
        own, rank = self.config.rank, a.shape[-1]
        if rank > own:
            message = f"an adapter of rank {rank} doesn't fit {self.path}, whose rank is {own}; set rank={rank}"
            raise ModuleError(message)
        room = (0, own - rank)
        fixed_a, fixed_b = ((0, 0),) * (a.ndim - 1), ((0, 0),) * (b.ndim - 1)
        return {"lora_a": np.pad(a, (*fixed_a, room)), "lora_b": np.pad(b, (room, *fixed_b))}

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs for each of its elements: every slot is computed."""
        del context_length
        cfg = self.config
        return float(2.0 * cfg.slots * cfg.rank * (math.prod(cfg.input_shape) + math.prod(cfg.output_shape)))
