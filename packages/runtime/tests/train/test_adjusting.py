"""A layer that adjusts its own parameters does so after the update, by what the step recorded; frozen ones stay."""

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.contracts import AdjustsParameters, Batch, Environment, ParameterRule
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.learn.sgd import SGD
from kanawa_runtime.train.trainer import Trainer
from tiny_lm import CountingTokens, TinyLM


class HalvedTable(TinyLM, AdjustsParameters):
    """Halves its table after each update."""

    class Config(TinyLM.Config, AdjustsParameters.Config):
        pass

    def setup(self):
        super().setup()
        self.add_state("calls", (1,), axes=(None,))

    def forward(self, batch):
        super().forward(batch)
        self.update("calls", self.state("calls") + 1.0)

    def adjusted(self, params, state):
        return {**params, "table": params["table"] * 0.5 ** state["calls"][0]}


def stepped(model, **learner):
    rate = Constant.Config(peak=0.1)
    cfg = Trainer.Config(
        model=model,
        data=CountingTokens.Config(),
        batch_size=8,
        steps=2,
        learner=Learner.Config(optimizer=SGD.Config(), schedule=rate, **learner),
    )
    programs = cfg.build().programs(Environment())
    rows = [CountingTokens.Config().build().row(index) for index in range(8)]
    batch = Batch(**{name: np.stack([row[name] for row in rows]) for name in rows[0]})
    state = programs["init"].lower().compile()()
    before = jax.tree.map(jnp.copy, state.params)
    return before, programs["train_step"].lower().compile()(state, batch)[0]


def test_parameters_are_adjusted_after_the_update():
    _, plain = stepped(TinyLM.Config())
    _, halved = stepped(HalvedTable.Config())
    assert float(halved.state["calls"][0]) == 1.0
    np.testing.assert_allclose(halved.params["table"], 0.5 * plain.params["table"], rtol=1e-5)
    np.testing.assert_allclose(
        halved.params["layer"]["feed_forward"]["up"], plain.params["layer"]["feed_forward"]["up"], rtol=1e-5
    )


def test_frozen_parameters_are_not():
    before, after = stepped(HalvedTable.Config(), rules=(ParameterRule(where="table", frozen=True),))
    np.testing.assert_array_equal(after.params["table"], before["table"])
