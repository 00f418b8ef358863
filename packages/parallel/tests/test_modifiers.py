"""The `mesh` modifier: strategies follow the axes, a later mesh's replace an earlier one's, a user's own stay."""

import kanawa as kn
from kanawa.contracts import ExecutionConfig
from kanawa_parallel.modifiers import Mesh
from kanawa_parallel.strategies.all_gather import AllGatherAttention
from kanawa_parallel.strategies.data import DataParallel
from kanawa_parallel.strategies.expert import ExpertParallel
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.pipeline import Pipeline
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel


class Job(kn.Config):
    """As much of a workload as the modifier touches."""

    execution: ExecutionConfig = ExecutionConfig()


def meshed(cfg, **axes):
    return Mesh.Config(axes=axes).build()(cfg)


def kinds(cfg):
    return [strategy._target for strategy in cfg.execution.strategies]


def test_strategies_follow_the_axes_in_an_order_that_composes():
    assert kinds(meshed(Job(), data=8)) == [ExpertParallel, DataParallel]
    every = meshed(Job(), context=2, fsdp=2, tensor=2)
    assert kinds(every) == [TensorParallel, RingAttention, FSDP, ExpertParallel]


def test_a_later_mesh_replaces_what_a_rule_chose():
    cfg = meshed(Job(), fsdp=-1)
    cfg.execution.set(strategies=(Pipeline.Config(), *cfg.execution.strategies))
    assert kinds(meshed(cfg, fsdp=4, tensor=2)) == [Pipeline, TensorParallel, FSDP, ExpertParallel]


def test_a_users_own_strategies_stay():
    cfg = Job()
    cfg.execution.set(strategies=(AllGatherAttention.Config(), FSDP.Config()))
    assert kinds(meshed(cfg, context=2, fsdp=4)) == [AllGatherAttention, FSDP]
    assert kinds(meshed(cfg, context=4, fsdp=2)) == [AllGatherAttention, FSDP]
