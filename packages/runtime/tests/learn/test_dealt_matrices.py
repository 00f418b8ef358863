"""Muon on a mesh: each device orthogonalises whole matrices, and the update is that of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.spec import ParamSpec
from kanawa_runtime.learn.muon import Muon

LAYERS = 5
#: Five iterations enlarge rounding of fp32 some 500 times: at this rate changes of parameters still agree to 1e-6.
RATE = 0.02
SPECS = {
    "query": ParamSpec((16, 4, 8), ("embed", "heads", None), fan_out_axes=(1, 2)).stacked(LAYERS),
    "output": ParamSpec((4, 8, 16), ("heads", None, "embed"), fan_in_axes=(0, 1)).stacked(LAYERS),
    "gate": ParamSpec((16, 32), ("embed", "mlp")).stacked(LAYERS),
    "down": ParamSpec((32, 16), ("mlp", "embed")).stacked(LAYERS),
    "fused": ParamSpec((16, 24), ("embed", "mlp"), parts=(1, (8, 16))).stacked(LAYERS),
    "experts": ParamSpec((4, 16, 8), ("experts", "embed", "mlp"), fan_in_axes=(1,)).stacked(LAYERS),
    "odd": ParamSpec((6, 10), ("embed", None)),
    "scale": ParamSpec((16,), ("norm",)),
}
RULES = (
    ("layers", ("stage",)),
    ("heads", ("tensor",)),
    ("mlp", ("tensor",)),
    ("experts", ("expert",)),
    ("embed", ("fsdp",)),
)


def update(arrays):
    transform = (
        Muon.Config(newton_schulz_dtype="float32").build().transformation(SPECS, lambda count: jnp.float32(RATE))
    )
    updates, state = transform.update(arrays, transform.init(arrays), arrays)
    return updates, state["muon"].momentum


def gradients():
    keys = jax.random.split(jax.random.key(0), len(SPECS))
    return {name: jax.random.normal(key, spec.shape) for key, (name, spec) in zip(keys, SPECS.items(), strict=True)}


def compiled(axes):
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    with jax.set_mesh(mesh), use_plan(ExecutionPlan(param_rules=RULES)):
        shardings = param_shardings(SPECS, RULES, mesh)
        placed = jax.device_put(gradients(), shardings)
        return jax.jit(update, out_shardings=(shardings, None)).lower(placed).compile(), placed


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"expert": 2, "fsdp": 4},
        pytest.param({"stage": 5}, marks=pytest.mark.nightly),
        pytest.param({"data": 8}, marks=pytest.mark.nightly),
    ],
)
def test_eight_devices_update_as_one(axes):
    program, placed = compiled(axes)
    found, _ = program(placed)
    wanted, _ = jax.jit(update)(gradients())
    for name, expected in wanted.items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-6, err_msg=name)


def test_each_device_does_its_share_and_no_matrix_is_gathered():
    program, _ = compiled({"fsdp": 8})
    text = program.as_text()
    # Vectors and what no axis divides are gathered or whole; matrices travel there and back.
    assert "all-to-all" in text
    alone = jax.jit(update).lower(gradients()).compile().cost_analysis()["flops"]
    assert program.cost_analysis()["flops"] < alone / 4
