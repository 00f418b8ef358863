"""Moments in fewer bits: what a value becomes, what it costs, and that training stays close to float32."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.optimizer_state import state_sharding
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import ParameterGroup
from kanawa.errors import ConfigError, UsageError
from kanawa_runtime.learn.adafactor import Adafactor
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.learn.state_storage import Bfloat16States, BlockwiseStates, code_table

SPECS = {
    "table.weight": ParamSpec((64, 32), ("vocab", "embed")),
    "mlp.weight": ParamSpec((64, 512), ("embed", "mlp")),
    "odd.weight": ParamSpec((700, 7), ("embed", "mlp")),
    "norm.scale": ParamSpec((64,), ("embed",)),
}
NAME, KEY = "adam/nu/mlp.weight", jax.random.key(1)


def arrays(seed):
    random = np.random.default_rng(seed)
    # Some columns are a thousand times smaller than their neighbours, as rows of rare tokens are.
    scale = {path: 10.0 ** random.uniform(-3, 0, spec.shape[-1:])[None] for path, spec in SPECS.items()}
    return {
        path: jnp.asarray((random.standard_normal(spec.shape) * scale[path]).reshape(spec.shape), jnp.float32)
        for path, spec in SPECS.items()
    }


def rule(storage, optimizer=None, **fields):
    cfg = Learner.Config(
        optimizer=optimizer or AdamW.Config(b2=0.999),
        schedule=Constant.Config(peak=1e-2),
        state_storage=storage,
        **fields,
    )
    return cfg.build().update_rule(SPECS, 100)


def trained(made, steps=30):
    params, slow = arrays(0), arrays(99)
    opt, update = made.init(params), jax.jit(made.update)
    for step in range(steps):
        grads = {path: slow[path] + 0.3 * noise for path, noise in arrays(step + 1).items()}
        params, opt, _ = update(grads, opt, params)
    return params, opt


def test_the_table_is_that_of_the_paper():
    signed, positive = code_table(False), code_table(True)
    assert len(signed) == len(positive) == 256
    assert (signed[0], signed[-1], positive[0], positive[-1]) == (pytest.approx(-0.99296875), 1.0, 0.0, 1.0)
    assert positive[1] == pytest.approx(3.25e-7)
    # Seven powers of ten, each with twice the numbers of the one below.
    counts = [np.sum((positive > 10.0**-d) & (positive < 10.0 ** (1 - d))) for d in range(1, 8)]
    assert counts == [128, 64, 32, 16, 8, 4, 2]


@pytest.mark.parametrize("nonnegative", [False, True])
def test_each_value_is_the_nearest_of_the_table_and_only_zero_is_zero(nonnegative):
    storage = BlockwiseStates.Config(block_size=64).build()
    values = np.array(arrays(3)["mlp.weight"])
    values = np.abs(values) if nonnegative else values
    values[0, :3], values[1, :64] = (0.0, 1e-30, -0.0), 0.0
    stored = storage.encode(NAME, jnp.asarray(values), nonnegative, KEY)
    found = np.asarray(storage.decode(NAME, stored, nonnegative))
    assert stored[NAME].dtype == jnp.uint8
    assert stored["adam/nu-scales/mlp.weight"].shape == (64, 8)
    table = code_table(nonnegative).astype(np.float32)
    for row in (0, 5, 63):
        for block in range(0, 512, 64):
            part = values[row, block : block + 64]
            most = np.abs(part).max()
            error = np.abs(part[:, None] - table * most).min(-1)
            away = np.abs(found[row, block : block + 64] - part)
            smallest = most * table[table > 0].min()
            assert (away <= np.maximum(error * (1 + 1e-5), smallest) + 1e-12).all()
    np.testing.assert_array_equal(found == 0, values == 0)
    np.testing.assert_array_equal(np.sign(found), np.sign(values))


def test_bfloat16_is_rounded_at_random_and_right_on_average():
    storage = Bfloat16States.Config().build()
    value = jnp.full((200, 500), 1.0 + 1.0 / 512, jnp.float32)
    stored = storage.encode(NAME, value, False, KEY)
    found = np.asarray(storage.decode(NAME, stored, False))
    assert set(np.unique(found)) == {1.0, 1.0 + 1.0 / 128}
    assert found.mean() == pytest.approx(1.0 + 1.0 / 512, abs=1e-4)
    wild = jnp.asarray([np.inf, -np.inf, np.nan, 3.4e38, 0.0, -0.0])
    back = np.asarray(storage.decode(NAME, storage.encode(NAME, wild, False, KEY), False))
    np.testing.assert_array_equal(np.isfinite(back), [False, False, False, False, True, True])
    assert back[0] == np.inf and back[1] == -np.inf and np.isnan(back[2])


@pytest.mark.parametrize(("storage", "bits", "near"), [(Bfloat16States, 16, 0.02), (BlockwiseStates, 8, 0.06)])
def test_training_stays_close_to_float32_at_a_fraction_of_the_memory(storage, bits, near):
    exact, whole = trained(rule(None))
    found, opt = trained(rule(storage.Config(min_size=1024)))
    for path in SPECS:
        moved = np.linalg.norm(exact[path] - arrays(0)[path])
        assert np.linalg.norm(found[path] - exact[path]) < near * moved, path

    def size(flat, path):
        return sum(leaf.nbytes for name, leaf in flat.items() if name.endswith(path))

    assert size(opt, "mlp.weight") <= size(whole, "mlp.weight") * (bits / 32 + 4 / 256 + 1e-9)
    assert size(opt, "norm.scale") == size(whole, "norm.scale")
    # No divisor of 7 is a block: it stays as it is.
    assert (opt["adam/mu/odd.weight"].dtype == jnp.float32) == (bits == 8)


def test_abstract_state_and_shardings_follow():
    made = rule(BlockwiseStates.Config(min_size=1024))
    opt, abstract = made.init(arrays(0)), made.abstract(arrays(0))
    assert {n: (x.shape, x.dtype) for n, x in opt.items()} == {n: (x.shape, x.dtype) for n, x in abstract.items()}
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp", "tensor"))
    param = jax.ShapeDtypeStruct((64, 512), jnp.float32, sharding=split)
    scales = abstract["adam/mu-scales/mlp.weight"]
    assert scales.shape == (64, 2)
    assert state_sharding(scales.shape, param, None).spec == jax.sharding.PartitionSpec("fsdp", None)
    np.testing.assert_array_equal(opt["adam/mu-scales/mlp.weight"], 0.0)


def test_moments_of_groups_are_stored_too_and_optimizers_without_any_are_refused():
    group = ParameterGroup(name="matrices", where=("mlp.*",), optimizer=Muon.Config())
    opt = rule(BlockwiseStates.Config(min_size=1024), groups=(group,)).init(arrays(0))
    assert opt["matrices/muon/momentum/mlp.weight"].dtype == jnp.uint8
    assert opt["rest/adam/nu/table.weight"].dtype == jnp.uint8
    with pytest.raises(UsageError, match="Adafactor has no state that may be stored in fewer bits"):
        rule(BlockwiseStates.Config(), optimizer=Adafactor.Config())


def test_the_modifiers_fill_the_learners_slots():
    cfg = kn.experiment("tiny-lm").config.clone()
    for name, values in (("state-bits", {"bits": 16}), ("loss-scale", {"interval": 7})):
        cfg = kn.component("modifiers", name).Config(**values).build()(cfg)
    assert isinstance(cfg.learner.state_storage, Bfloat16States.Config)
    assert cfg.learner.loss_scale.interval == 7
    cfg = kn.component("modifiers", "schedule").Config(name="inverse-square-root", values={"peak": 0.5}).build()(cfg)
    assert cfg.learner.schedule.peak == 0.5
    with pytest.raises(ConfigError, match="bits is 4; choices: 8"):
        kn.component("modifiers", "state-bits").Config(bits=4).freeze()
