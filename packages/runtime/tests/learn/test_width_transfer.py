"""muP's rates by width: which parameters scale, by which law, and what is refused."""

import dataclasses

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.spec import ParamSpec
from kanawa.errors import ConfigError, UsageError
from kanawa.testing.optimizer import SPECS, OptimizerConformance
from kanawa_runtime.learn.adafactor import Adafactor
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.groups import ParameterGroup
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.muon import Muon
from kanawa_runtime.learn.width_transfer import WidthTransfer, width_of

MATRICES = {"mlp.weight", "q.weight", "stack.weight", "experts.weight"}


@pytest.mark.parametrize(
    ("optimizer", "factor"),
    [(AdamW.Config(), 0.25), (Muon.Config(), 0.5), (Muon.Config(rms=None), 1.0)],
)
def test_only_hidden_matrices_learn_by_width_and_by_the_optimizers_law(optimizer, factor):
    scaled = WidthTransfer.Config(base_width=2).build().scaled(SPECS, optimizer.build())
    for path, spec in scaled.items():
        assert spec.lr_scale == pytest.approx(factor if path in MATRICES else 1.0), path
        assert dataclasses.replace(spec, lr_scale=1.0) == SPECS[path]


def test_at_the_base_nothing_changes_and_the_learner_applies_it():
    arrays = OptimizerConformance().arrays
    changes = {}
    for base in (None, 8, 4):
        transfer = None if base is None else WidthTransfer.Config(base_width=base)
        made = Learner.Config(width_transfer=transfer).build().update_rule(SPECS, 10)
        after, _, _ = jax.jit(made.update)(arrays(1), made.init(arrays(0)), arrays(0))
        changes[base] = {path: np.asarray(after[path] - arrays(0)[path]) for path in SPECS}
    for path in SPECS:
        np.testing.assert_array_equal(changes[None][path], changes[8][path])
        share = 0.5 if path in MATRICES else 1.0
        np.testing.assert_allclose(changes[4][path], share * changes[8][path], atol=2e-7, err_msg=path)


def test_what_has_no_law_or_no_one_width_is_refused():
    transfer = WidthTransfer.Config(base_width=4)
    with pytest.raises(UsageError, match="Adafactor has no known law .* adamw, lion, muon"):
        transfer.build().scaled(SPECS, Adafactor.Config().build())
    two = {**SPECS, "image.weight": ParamSpec((4, 2), ("embed", "mlp"))}
    with pytest.raises(UsageError, match="muP needs one width, .* found 4, 8"):
        width_of(two)
    with pytest.raises(UsageError, match="groups may have several"):
        groups = (ParameterGroup(name="a", roles=("vector",)),)
        Learner.Config(width_transfer=transfer, groups=groups).build().update_rule(SPECS, 10)
    with pytest.raises(ConfigError, match="lacks a head with logit_scale"):
        kn.component("modifiers", "mup").Config(base_width=4).build()(kn.experiment("tiny-lm").config.clone())
