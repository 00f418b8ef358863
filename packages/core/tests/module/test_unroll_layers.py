"""A plan may have loops over few layers written out: the same result, without a loop in the program."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.plugins import ProgramTraits


class Layer(kn.Module):
    """Adds a projection."""

    class Config(kn.Module.Config):
        width: int = 4

    def setup(self):
        self.add_param("weight", (4, 4), axes=("embed", "mlp"))

    def forward(self, x):
        return x + jnp.tanh(x @ self.param("weight"))


class Stack(kn.Module):
    """Three layers in a loop, and a loop over data."""

    class Config(kn.Module.Config):
        layer: Layer.Config = Layer.Config()

    def setup(self):
        self.add_child("layer", self.config.layer, stacked=3)

    def forward(self, x):
        x, _ = kn.scan(lambda c, _: (self.layer(c), None), x, over="layer")
        return kn.scan(lambda c, row: (c + row, None), x, jnp.ones((3, 2, 4)))[0]


def program(unroll_layers):
    stack = Stack.Config().build()
    params = kn.initialize(stack, jax.random.key(0))
    run = kn.functional(stack)
    with use_plan(ExecutionPlan(traits=ProgramTraits(unrolled_layers=unroll_layers))):
        lowered = jax.jit(jax.grad(lambda p, x: run(p, {}, x)[0].sum())).lower(params, jnp.ones((2, 4)))
    return lowered.as_text().count("stablehlo.while"), lowered.compile()(params, jnp.ones((2, 4)))


@pytest.mark.parametrize(("unroll_layers", "loops"), [(0, 3), (2, 3), (3, 1), (16, 1)])
def test_loops_over_few_layers_are_written_out_and_loops_over_data_stay(unroll_layers, loops):
    whiles, gradients = program(unroll_layers)
    assert whiles == loops
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradients, program(0)[1])
