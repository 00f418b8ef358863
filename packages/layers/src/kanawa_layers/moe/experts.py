"""What all experts of a mixture are: one set of arrays [experts, in, out], applied to rows sorted by expert."""

import abc

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.axes import LogicalAxes
from kanawa.contracts import Weighted
from kanawa.kernels.grouped_matmul import grouped_matmul


class Experts(Weighted):
    """`num_experts` feed-forwards of one kind; a slot of a mixture. Weights may be stored in other forms."""

    class Config(Weighted.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        hidden_dim: kn.Size = kn.FROM_PARENT
        num_experts: kn.Size = kn.FROM_PARENT
        bias: bool = False

    @abc.abstractmethod
    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert; group g owns the next group_sizes[g] rows."""

    @kn.nowrap
    def add_projection(self, name: str, *, up: bool) -> None:
        """Declares the weight `name`, to the hidden width or back from it, and `<name>_bias` where configured."""
        cfg = self.config
        shape = (
            (cfg.num_experts, cfg.input_dim, cfg.hidden_dim) if up else (cfg.num_experts, cfg.hidden_dim, cfg.input_dim)
        )
        axes: LogicalAxes = ("experts", "embed", "mlp") if up else ("experts", "mlp", "embed")
        # By default a weight's first dimension is its fan-in; here it counts experts.
        self.add_weight(name, shape, axes=axes, fan_in_axes=(1,), fan_out_axes=(2,))
        if cfg.bias:
            width, axis = shape[2], axes[2]
            self.add_param(
                f"{name}_bias", (cfg.num_experts, width), axes=("experts", axis), init=kn.zeros, weight_decay=0.0
            )

    def project(self, rows: Float[Array, "R K"], name: str, group_sizes: Int[Array, " X"]) -> Float[Array, "R N"]:
        """Returns each row times its expert's matrix, plus its bias."""
        y = grouped_matmul(rows, self.dense_weight(name), group_sizes)
        if not self.config.bias:
            return y
        bias = self.param(f"{name}_bias")
        # Group sizes are known only on the device, so `repeat` needs the total. Padding rows past the last group get
        # the last expert's bias; their weight is 0.
        expert = jnp.repeat(jnp.arange(group_sizes.shape[0]), group_sizes, total_repeat_length=rows.shape[0])
        return y + jnp.take(bias, expert, axis=0)

    @kn.nowrap
    @abc.abstractmethod
    def flops_per_row(self) -> float:
        """Returns the matmul FLOPs of one row through one expert."""

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns the FLOPs of one expert; the mixture multiplies them by the experts a token visits."""
        del context_length
        return self.flops_per_row()
