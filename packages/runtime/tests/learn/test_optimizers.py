"""Every optimizer passes the kit; Muon, Adafactor and schedule-free AdamW against other implementations of theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kanawa.arrays.optimizer_state import to_flat
from kanawa.arrays.spec import ParamSpec
from kanawa.testing.optimizer import SPECS, OptimizerConformance
from kanawa_runtime.learn.adafactor import Adafactor
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.ademamix import AdEMAMix
from kanawa_runtime.learn.lion import Lion
from kanawa_runtime.learn.matrices import hidden_matrices, matrix_layout
from kanawa_runtime.learn.muon import Muon, orthogonalised
from kanawa_runtime.learn.schedule_free import ScheduleFreeAdamW
from kanawa_runtime.learn.sgd import SGD
from kanawa_runtime.learn.soap import Soap
from kanawa_runtime.learn.sophia import Sophia


class TestAdamW(OptimizerConformance):
    def config(self):
        return AdamW.Config()


class TestSGD(OptimizerConformance):
    learning_rate = 0.1

    def config(self):
        return SGD.Config(momentum=0.5)


class TestMuon(OptimizerConformance):
    learning_rate = 0.05

    def config(self):
        return Muon.Config()


class TestLion(OptimizerConformance):
    def config(self):
        return Lion.Config()


class TestAdafactor(OptimizerConformance):
    def config(self):
        return Adafactor.Config(min_factored=4)


class TestAdEMAMix(OptimizerConformance):
    learning_rate = 0.01

    def config(self):
        return AdEMAMix.Config(warmup_steps=40)


class TestScheduleFreeAdamW(OptimizerConformance):
    learning_rate = 0.1

    def config(self):
        return ScheduleFreeAdamW.Config()


class TestSoap(OptimizerConformance):
    learning_rate = 0.05
    idle_updates = 1

    def config(self):
        return Soap.Config(interval=2)


class TestSophia(OptimizerConformance):
    def config(self):
        return Sophia.Config(interval=2)


def constant(rate):
    return lambda count: jnp.full((), rate, jnp.float32)


def arrays(seed, specs=SPECS):
    return OptimizerConformance().arrays(seed, specs)


def run(transform, specs, steps=3):
    params = arrays(0, specs)
    state = transform.init(params)
    update = jax.jit(transform.update)
    for step in range(steps):
        changes, state = update(arrays(step + 1, specs), state, params)
        params = {path: param + changes[path] for path, param in params.items()}
    return params, state


def test_muon_takes_hidden_matrices_and_adam_the_rest():
    assert set(hidden_matrices(SPECS)) == {"mlp.weight", "q.weight", "stack.weight", "experts.weight"}
    state = to_flat(Muon.Config().build().transformation(SPECS, constant(0.1)).init(arrays(0)))
    assert {"muon/momentum/experts.weight", "adam/mu/embedding.weight", "adam/nu/norm.scale"} <= set(state)
    assert not {"adam/mu/mlp.weight", "muon/momentum/norm.scale"} & set(state)


def test_layouts_follow_the_fan_axes():
    spec = SPECS["experts.weight"]
    layout = matrix_layout(spec)
    assert (layout.batch, layout.rows, layout.columns) == ((0, 1), (2,), (3,))
    array = arrays(0)["experts.weight"]
    matrices = layout.to_matrices(array)
    np.testing.assert_array_equal(matrices[1 * 4 + 2], array[1, 2])
    np.testing.assert_array_equal(layout.from_matrices(matrices), array)
    backwards = ParamSpec((4, 2, 8), ("heads", "head_dim", "embed"), fan_in_axes=(2,), fan_out_axes=(0, 1))
    array = jnp.arange(64.0).reshape(4, 2, 8)
    layout = matrix_layout(backwards)
    np.testing.assert_array_equal(layout.to_matrices(array)[0], array.reshape(8, 8).T)
    np.testing.assert_array_equal(layout.from_matrices(layout.to_matrices(array)), array)


def test_orthogonalised_keeps_singular_vectors():
    matrices = arrays(3)["experts.weight"].reshape(-1, 8, 16)
    found = orthogonalised(matrices, 5, "float32")
    u, s, v = np.linalg.svd(np.asarray(found), full_matrices=False)
    assert 0.6 < s.min() <= s.max() < 1.3
    u0, _, v0 = np.linalg.svd(np.asarray(matrices), full_matrices=False)
    aligned = np.einsum("nik,nij,nkj->nk", u0, np.asarray(found), v0)
    assert (aligned > 0.6).all()


@pytest.mark.parametrize("rms", [0.2, None])
def test_muon_equals_optax_on_plain_matrices(rms):
    specs = {"a": ParamSpec((8, 16), ("embed", "mlp")), "b": ParamSpec((16, 8), ("mlp", "embed"))}
    cfg = Muon.Config(rms=rms, weight_decay=0.1, newton_schulz_dtype="float32", nesterov=False)
    found, _ = run(cfg.build().transformation(specs, constant(0.02)), specs)
    # optax averages gradients and we add them up: that scale falls out of the orthogonalisation.
    reference = optax.contrib.muon(0.02, beta=0.95, weight_decay=0.1, consistent_rms=rms, eps=1e-12, nesterov=False)
    expected, _ = run(reference, specs)
    for path in specs:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-3, atol=1e-4)


def test_nesterov_looks_ahead_as_jordan_does():
    specs = {"a": ParamSpec((8, 16), ("embed", "mlp"))}
    cfg = Muon.Config(weight_decay=0.0, newton_schulz_dtype="float32", rms=None)
    transform = cfg.build().transformation(specs, constant(1.0))
    params = {"a": jnp.zeros((8, 16))}
    first, second = arrays(1, specs), arrays(2, specs)
    _, state = transform.update(first, transform.init(params), params)
    changes, _ = transform.update(second, state, params)
    average = 0.95 * (0.05 * first["a"]) + 0.05 * second["a"]
    ahead = 0.05 * second["a"] + 0.95 * average
    expected = -(2.0**0.5) * orthogonalised(ahead[None], 5, "float32")[0]
    np.testing.assert_allclose(changes["a"], expected, rtol=1e-4, atol=1e-5)


def test_adafactor_equals_optax_where_it_factors_the_same_axes():
    specs = {"a": ParamSpec((8, 16), ("embed", "mlp")), "b": ParamSpec((8,), ("embed",))}
    cfg = Adafactor.Config(min_factored=4, relative=True)
    found, state = run(cfg.build().transformation(specs, constant(0.02)), specs)
    reference = optax.adafactor(0.02, min_dim_size_to_factor=4)
    expected, _ = run(reference, specs)
    for path in specs:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-4, atol=1e-5)
    shapes = {path: leaf.shape for path, leaf in to_flat(state).items()}
    assert shapes["adafactor/row/a"] == (8, 1)
    assert shapes["adafactor/column/a"] == (1, 16)
    assert shapes["adafactor/whole/b"] == (8,)


def test_adafactor_respects_what_must_not_be_factored():
    specs = {"a": ParamSpec((8, 16), ("embed", "mlp"), factored=False)}
    state = to_flat(
        Adafactor.Config(min_factored=4).build().transformation(specs, constant(0.1)).init(arrays(0, specs))
    )
    assert state["adafactor/whole/a"].shape == (8, 16)


def test_ademamix_grows_its_slow_average():
    optimizer = AdEMAMix.Config(warmup_steps=100, alpha=8.0).build()
    assert float(optimizer.slow_weight(jnp.int32(50))) == pytest.approx(4.0)
    ends = [float(optimizer.slow_rate(jnp.int32(count))) for count in (0, 100, 1000)]
    assert ends == pytest.approx([0.9, 0.9999, 0.9999])
    # Half-lives, not rates, are spaced evenly.
    half = np.log(0.5) / np.log(float(optimizer.slow_rate(jnp.int32(50))))
    assert half == pytest.approx((np.log(0.5) / np.log(0.9) + np.log(0.5) / np.log(0.9999)) / 2, rel=1e-2)


def test_schedule_free_equals_optax():
    cfg = ScheduleFreeAdamW.Config(weight_decay=0.0, b2=0.99)
    found, state = run(cfg.build().transformation(SPECS, constant(0.05)), SPECS, steps=5)
    reference = optax.contrib.schedule_free(optax.adam(0.05, b1=0.0, b2=0.99), 0.05, b1=0.9)
    expected, reference_state = run(reference, SPECS, steps=5)
    averages = optax.contrib.schedule_free_eval_params(reference_state, expected)
    ours = cfg.build().evaluated(found, to_flat(state))
    for path in SPECS:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours[path], averages[path], rtol=1e-4, atol=1e-5)
