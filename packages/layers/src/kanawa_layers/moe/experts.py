"""The experts of a mixture: one set of arrays [experts, in, out], applied to rows sorted by expert."""

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.arrays.axes import LogicalAxes
from kanawa.contracts import Weighted

from kanawa_layers.feedforward.gated import Gating, Product


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
        y = self.grouped_matmul(rows, name, group_sizes)
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


class GatedExperts(Experts):
    """down(gating(activation, gate(x), up(x))) in each expert. Tags: feed_forward_gate, feed_forward_up."""

    class Config(Experts.Config):
        activation: Callable[..., Array] = jax.nn.silu
        gating: Gating.Config = Product.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "gate": kn.foreign.Tensor(name="{}.gate_proj.weight", form=kn.foreign.Matrix.Config()),
                "up": kn.foreign.Tensor(name="{}.up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="{}.down_proj.weight", form=kn.foreign.Matrix.Config()),
                "gate_bias": "{}.gate_proj.bias",
                "up_bias": "{}.up_proj.bias",
                "down_bias": "{}.down_proj.bias",
            }
        )

    def setup(self) -> None:
        """Declares gate, up and down of all experts."""
        super().setup()
        self.add_projection("gate", up=True)
        self.add_projection("up", up=True)
        self.add_projection("down", up=False)
        self._gating = self.config.gating.build()

    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert."""
        gate = self.tag("feed_forward_gate", self.project(rows, "gate", group_sizes))
        up = self.tag("feed_forward_up", self.project(rows, "up", group_sizes))
        return self.project(self._gating.combine(self.config.activation, gate, up), "down", group_sizes)

    @kn.nowrap
    def flops_per_row(self) -> float:
        """Returns two FLOPs for each weight of an expert's three matrices."""
        return float(6.0 * self.config.input_dim * self.config.hidden_dim)


class PlainExperts(Experts):
    """down(activation(up(x))) in each expert. Tag: feed_forward_up."""

    class Config(Experts.Config):
        activation: Callable[..., Array] = jax.nn.gelu
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "up": kn.foreign.Tensor(name="{}.up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="{}.down_proj.weight", form=kn.foreign.Matrix.Config()),
                "up_bias": "{}.up_proj.bias",
                "down_bias": "{}.down_proj.bias",
            }
        )

    def setup(self) -> None:
        """Declares up and down of all experts."""
        super().setup()
        self.add_projection("up", up=True)
        self.add_projection("down", up=False)

    def forward(self, rows: Float[Array, "R E"], group_sizes: Int[Array, " X"]) -> Float[Array, "R E"]:
        """Returns each row through its expert."""
        up = self.tag("feed_forward_up", self.project(rows, "up", group_sizes))
        return self.project(self.config.activation(up), "down", group_sizes)

    @kn.nowrap
    def flops_per_row(self) -> float:
        """Returns two FLOPs for each weight of an expert's two matrices."""
        return float(4.0 * self.config.input_dim * self.config.hidden_dim)
