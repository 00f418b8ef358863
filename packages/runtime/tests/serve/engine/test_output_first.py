"""Weights laid out outputs first: the same numbers, by whichever kernel, and only where it can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.composition.plain import in_forms
from kanawa.contracts import Weighted
from kanawa.kernels.matmul import matmul
from kanawa.module import functional, param_specs
from kanawa_runtime.serve.engine.output_first import OutputFirst


class Projection(Weighted):
    """[4, 6] -> [2, 3] with a weight for each of two experts beside it."""

    class Config(Weighted.Config):
        pass

    def setup(self):
        super().setup()
        self.add_weight(
            "weight", (4, 6, 2, 3), axes=("heads", "head_dim", "embed", None), fan_in_axes=(0, 1), fan_out_axes=(2, 3)
        )
        self.add_weight("experts", (2, 6, 4), axes=("experts", "embed", "mlp"), fan_in_axes=(1,), fan_out_axes=(2,))

    def forward(self, x):
        return self.matmul(x, "weight"), self.dense_weight("weight"), self.dense_weight("experts")


def test_it_changes_the_layout_and_nothing_else():
    plain, turned = Projection.Config().build(), Projection.Config(form=OutputFirst.Config()).build()
    specs = param_specs(turned)
    assert specs["weight"].shape == (2, 3, 4, 6) and specs["weight"].axes == ("embed", None, "heads", "head_dim")
    # What it is drawn from stays: the same fans, wherever the dimensions are.
    assert specs["weight"].fans() == param_specs(plain)["weight"].fans()
    assert specs["experts"] == param_specs(plain)["experts"]
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in param_specs(plain).items()}
    x = rng.normal(size=(5, 1, 4, 6)).astype(np.float32)
    expected, _ = functional(plain)(params, {}, x)
    given, _ = functional(turned)(in_forms(turned, params, OutputFirst), {}, x)
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert np.array_equal(in_forms(plain, params, OutputFirst)["weight"], params["weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 8, 40, 100, 300])
def test_either_layout_gives_the_same_numbers(dtype, rows):
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"))
    x, weight = (jax.random.normal(k, s, dtype) for k, s in zip(keys, ((rows, 1, 128), (128, 4, 300)), strict=True))
    expected = matmul(x.astype(jnp.float32), weight.astype(jnp.float32))
    for purpose in ("prefill", "decode"):
        with use_plan(ExecutionPlan(purpose=purpose)):
            given = matmul(x, weight.transpose(1, 2, 0), outputs_first=True)
        assert given.dtype == dtype and given.shape == (rows, 1, 4, 300)
        np.testing.assert_allclose(given.astype(jnp.float32), expected, atol=2e-4 if dtype == "float32" else 0.25)
