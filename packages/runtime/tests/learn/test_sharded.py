"""Whole training steps with every optimizer: sharded over eight devices they equal those of one, state included."""

from importlib.metadata import entry_points

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from kanawa.arrays.plan import ExecutionPlan
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import Batch, Environment, RolloutBatch
from kanawa.errors import UsageError
from kanawa.plugins import component
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.train.curvature import curvature_of
from kanawa_runtime.train.gradients import WholeBatch
from kanawa_runtime.train.trainer import Trainer
from tiny_lm import CountingTokens, TinyLM

STEPS = 4
NAMES = sorted(entry.name for entry in entry_points(group="kanawa.optimizers") if entry.dist.name == "kanawa-runtime")

#: SOAP's longer sides span more directions than one gradient has; within the rest a basis is rounding's choice. Muon's
#: iterations enlarge rounding to bf16 to 1 % of an update.
FIELDS = {
    "soap": {"max_side": 8, "interval": 2},
    "sophia": {"interval": 2},
    "adafactor": {"min_factored": 4},
    "muon": {"newton_schulz_dtype": "float32"},
}


def batch(index):
    rows = [CountingTokens.Config().build().row(index * 8 + i) for i in range(8)]
    return Batch(**{name: np.stack([row[name] for row in rows]) for name in rows[0]})


def trained(optimizer, environment):
    cfg = Trainer.Config(
        model=TinyLM.Config(),
        data=CountingTokens.Config(),
        batch_size=8,
        steps=STEPS,
        learner=Learner.Config(optimizer=optimizer, schedule=Constant.Config(peak=1e-2)),
    )
    programs = cfg.build().programs(environment)
    state, step = programs["init"].lower().compile()(), programs["train_step"].lower().compile()
    for index in range(STEPS):
        state, report = step(state, batch(index))
    return state, report.read()


@pytest.mark.parametrize("name", NAMES)
def test_eight_devices_equal_one(name):
    optimizer = component("optimizers", name).Config(**FIELDS.get(name, {}))
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rules = (("embed", ("fsdp",)), ("mlp", ("tensor",)), ("vocab", ("tensor",)))
    one, _ = trained(optimizer, Environment())
    eight, report = trained(optimizer, Environment(ExecutionPlan(param_rules=rules), mesh))
    assert np.isfinite(report["loss"])
    split = [path for path, leaf in eight.opt.items() if not leaf.sharding.is_fully_replicated]
    assert split or name == "sgd", f"no array of {name}'s state is split"
    for path, expected in flatten_paths(one.params).items():
        found = flatten_paths(eight.params)[path]
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=5e-5, err_msg=path)


def test_curvature_needs_labels_that_can_be_drawn():
    rollouts = RolloutBatch(*(None,) * 7)
    with pytest.raises(UsageError, match="a RolloutBatch has none; choose another one: --modify optimizer:name=adamw"):
        curvature_of(WholeBatch.Config().build(), None, {}, {}, rollouts, None)
