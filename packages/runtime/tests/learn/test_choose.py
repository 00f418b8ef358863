"""`--modify optimizer:name=…` swaps the optimizer of any experiment."""

import kanawa as kn
import optax
import pytest
from kanawa.composition.modifiers import apply_modifier
from kanawa.errors import UnknownNameError
from kanawa_runtime.learn.adamw import AdamW
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.lion import Lion
from kanawa_runtime.learn.muon import Muon


def test_what_was_set_carries_over_and_defaults_do_not():
    cfg = Learner.Config(optimizer=AdamW.Config(weight_decay=0.2))
    found = apply_modifier(cfg, "optimizer", {"name": "muon", "values": '{"momentum": 0.9}'}, "modifier")
    assert found.optimizer == Muon.Config(weight_decay=0.2, momentum=0.9)
    assert apply_modifier(cfg, "optimizer", {"name": "lion"}, "modifier").optimizer.b2 == 0.99


def test_an_optax_transformation_gives_way():
    cfg = Learner.Config(optimizer=kn.config_for(optax.sgd, learning_rate=kn.FROM_PARENT))
    assert apply_modifier(cfg, "optimizer", {"name": "lion"}, "modifier").optimizer == Lion.Config()


def test_an_unknown_optimizer_has_near_names():
    with pytest.raises(UnknownNameError, match="muon"):
        apply_modifier(Learner.Config(), "optimizer", {"name": "moun"}, "modifier")
