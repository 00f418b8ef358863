"""The `remat` modifier takes any catalogued policy, a stranger's too, and says what is wrong with a name."""

import kanawa as kn
import pytest
from kanawa.contracts import RematPolicy, Stack
from kanawa.errors import UnknownNameError, UsageError
from kanawa_parallel.remat.modifier import Remat
from kanawa_parallel.remat.policies import FullRemat, KeepAll, OffloadNames, SaveNames

STRANGER = """
import kanawa as kn
from kanawa.contracts import RematPolicy

class KeepGates(RematPolicy):
    class Config(RematPolicy.Config):
        depth: int = 3

    @kn.nowrap
    def policy(self):
        return True

def deep():
    return KeepGates.Config(depth=9)

def nonsense():
    return "keep nothing"
"""
NAMES = ("keep-gates = stranger:KeepGates", "keep-deep = stranger:deep", "nonsense = stranger:nonsense")


class Tower(Stack):
    """A stack with a slot for the policy."""

    class Config(Stack.Config):
        remat: RematPolicy.Config | None = None


class Bare(Stack):
    """A stack that recomputes nothing, whatever is asked."""


class Model(kn.Config):
    """Two towers, one of which has the slot."""

    first: Stack.Config = Tower.Config(num_layers=2)
    second: Stack.Config = Bare.Config(num_layers=2)


def changed(policy):
    return Remat.Config(policy=policy).build()(Model()).first.remat


def test_a_policy_reaches_every_stack_that_has_the_slot():
    assert changed("full") == FullRemat.Config()
    assert changed("none") == KeepAll.Config()
    assert changed("save-qkv-and-output") == SaveNames.Config()


def test_a_strangers_policy_needs_an_entry_point_and_nothing_else(stranger):
    stranger("stranger", STRANGER, remat=NAMES)
    assert changed("keep-gates").depth == 3
    assert changed("keep-deep").depth == 9
    assert changed("keep-gates").build().policy() is True


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(UnknownNameError, match=r"'save-qkv-and-outputs' of kind 'remat'.*save-qkv-and-output"):
        changed("save-qkv-and-outputs")


def test_a_component_that_gives_no_policy_is_named(stranger):
    stranger("stranger", STRANGER, remat=NAMES)
    with pytest.raises(UsageError, match=r"'nonsense' is .* which returned str; expected a RematPolicy, or a function"):
        changed("nonsense")


def test_activations_may_be_named_without_a_policy_of_that_name():
    kept = Remat.Config(save=("query",)).build()(Model()).first.remat
    assert kept == SaveNames.Config(save=("query",))
    sent = Remat.Config(save=("query",), offload=("layer_input",)).build()(Model()).first.remat
    assert sent == OffloadNames.Config(save=("query",), offload=("layer_input",))
