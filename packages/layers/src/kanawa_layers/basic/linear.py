"""Linear projection over any trailing axes: the one dense layer that everything else is made of."""

import dataclasses
import math

import kanawa as kn
from jaxtyping import Array, Float
from kanawa.arrays.axes import LogicalAxes
from kanawa.arrays.broadcast import spread
from kanawa.contracts import Adapter, Weighted


class Linear(Weighted):
    """Contracts the trailing `input_shape` of x with a weight of shape [*input_shape, *output_shape].

    The parent sets shapes and the weight's logical axes; the result has the dtype of the compute policy. `form`
    says how the weight is stored and multiplied (None: dense); `adapter` adds a small trained change.
    """

    adapter: Adapter | None

    class Config(Weighted.Config):
        input_shape: tuple[kn.Size, ...] = kn.FROM_PARENT
        output_shape: tuple[kn.Size, ...] = kn.FROM_PARENT
        axes: tuple[str | None, ...] = kn.FROM_PARENT
        bias: bool = False
        init_scale: kn.NonNegative = 1.0
        adapter: Adapter.Config | None = None
        foreign: kn.foreign.Names = kn.foreign.Names(
            children={"adapter": ""},
            tensors={
                "weight": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config()),
                "bias": kn.foreign.Tensor(name="bias", form=kn.foreign.Flat.Config()),
            },
        )

    def setup(self) -> None:
        """Declares `weight`, drawn with variance init_scale / fan_in, and `bias`, zero and never decayed."""
        super().setup()
        cfg = self.config
        num_inputs = len(cfg.input_shape)
        self.add_weight(
            "weight",
            (*cfg.input_shape, *cfg.output_shape),
            axes=cfg.axes,
            init=kn.fan_in_normal(cfg.init_scale),
            fan_in_axes=tuple(range(num_inputs)),
            fan_out_axes=tuple(range(num_inputs, num_inputs + len(cfg.output_shape))),
        )
        if cfg.bias:
            axes: LogicalAxes = tuple(cfg.axes[num_inputs:])
            self.add_param("bias", cfg.output_shape, axes=axes, init=kn.zeros, weight_decay=0.0)
        shapes = {"input_shape": cfg.input_shape, "output_shape": cfg.output_shape, "axes": cfg.axes}
        self.add_child("adapter", cfg.adapter, **shapes)

    def forward(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns x @ weight (+ bias) over the trailing axes."""
        y = self.matmul(x, "weight")
        # A function, since only some adapters (DoRA) need the weight, and restoring a quantised one is expensive.
        if self.adapter is not None:
            y = self.adapter(x, y, lambda: self.dense_weight("weight"))
        # The bias comes last, since DoRA doesn't rescale it.
        return y + spread(self.param("bias"), y.shape) if self.config.bias else y

    @kn.nowrap
    def mark_parts(self, axis: int, lengths: tuple[int, ...]) -> None:
        """Declares that several projections lie side by side along dimension `axis` of the weight, inputs first.

        For decoding, a weight may be stored with its outputs first; forms of other shapes have no parts.
        """
        spec, cfg = self.param_specs.get("weight"), self.config
        if spec is None:
            return
        shape = spec.shape[spec.num_stacked :]
        if shape == (*cfg.output_shape, *cfg.input_shape) != (*cfg.input_shape, *cfg.output_shape):
            axis = (axis - len(cfg.input_shape)) % len(shape)
        self.param_specs["weight"] = dataclasses.replace(spec, parts=(axis, lengths))

    @kn.nowrap
    def adapter_of(self, name: str) -> Adapter | None:
        """Returns the adapter."""
        del name
        return self.adapter

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight, and the adapter's."""
        adapter = 0.0 if self.adapter is None else self.adapter.flops_per_token(context_length)
        return float(2.0 * math.prod(self.config.input_shape) * math.prod(self.config.output_shape) + adapter)


def add_linear(layer: kn.Module, name: str, inputs: int, outputs: int, axes: tuple[str | None, ...]) -> None:
    """Declares the projection in slot `name` of a layer, from vectors of width `inputs` to vectors of `outputs`."""
    cfg = getattr(layer.config, name)
    layer.add_child(name, cfg, input_shape=(inputs,), output_shape=(outputs,), axes=axes)


def are_alike(*configs: Linear.Config) -> bool:
    """Returns whether these are plain projections that differ in their outputs only, and so can be fused."""
    first = configs[0]
    plain = all(type(cfg) is Linear.Config and cfg.form is None and cfg.adapter is None for cfg in configs)
    return plain and all(cfg.bias == first.bias for cfg in configs)
