"""Linear projection over any trailing axes: the one dense layer that everything else is made of."""

import math

import jax
import sashimono as sm
from jaxtyping import Array, Float
from sashimono.arrays.axes import LogicalAxes
from sashimono.arrays.broadcast import along_last


class Linear(sm.Module):
    """Contracts the trailing `input_shape` of x with a weight of shape [*input_shape, *output_shape].

    The parent gives shapes and the weight's logical axes; the result has the dtype of the compute policy.
    """

    class Config(sm.Module.Config):
        input_shape: tuple[int, ...] = sm.FROM_PARENT
        output_shape: tuple[int, ...] = sm.FROM_PARENT
        axes: tuple[str | None, ...] = sm.FROM_PARENT
        bias: bool = False
        init_scale: float = 1.0

    def setup(self) -> None:
        """Declares `weight`, drawn with variance init_scale / fan_in, and `bias`, zero and never decayed."""
        cfg = self.config
        num_inputs = len(cfg.input_shape)
        self.add_param(
            "weight",
            (*cfg.input_shape, *cfg.output_shape),
            axes=cfg.axes,
            init=sm.fan_in_normal(cfg.init_scale),
            fan_in_axes=tuple(range(num_inputs)),
            fan_out_axes=tuple(range(num_inputs, num_inputs + len(cfg.output_shape))),
        )
        if cfg.bias:
            axes: LogicalAxes = tuple(cfg.axes[num_inputs:])
            self.add_param("bias", cfg.output_shape, axes=axes, init=sm.zeros, weight_decay=0.0)

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns x @ weight (+ bias) over the trailing axes."""
        weight = self.param("weight")
        num_inputs = len(self.config.input_shape)
        dims = (tuple(range(x.ndim - num_inputs, x.ndim)), tuple(range(num_inputs)))
        y = jax.lax.dot_general(x, weight, (dims, ((), ())))
        return y + along_last(self.param("bias"), y.ndim) if self.config.bias else y

    @sm.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return 2.0 * math.prod(self.config.input_shape) * math.prod(self.config.output_shape)
