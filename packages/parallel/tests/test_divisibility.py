"""A mesh that doesn't fit is explained whole: every axis, its config path and the sizes that would do."""

import kanawa as kn
import pytest
from kanawa.contracts import ExecutionConfig, FeedForward
from kanawa_parallel.divisibility import mesh_problems
from kanawa_parallel.mesh import StandardMesh
from kanawa_parallel.modifiers import strategies_for
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel
from tiny_lm import TinyLM


class Rows(kn.Config):
    sequence_length: int = 16


class Job(kn.Config):
    """What a trainer's config has of a batch and a mesh."""

    model: TinyLM.Config = TinyLM.Config(input_dim=12, vocab_size=64)
    data: Rows = Rows()
    batch_size: int = 8
    execution: ExecutionConfig = ExecutionConfig()


def job(axes, strategies=None, **changes):
    cfg = Job()
    chosen = strategies_for(axes) if strategies is None else strategies
    cfg.execution.set(mesh=StandardMesh.Config(axes=axes), strategies=chosen)
    for path, value in changes.items():
        cfg.set_path(path.replace("__", "."), value)
    return cfg


def test_a_mesh_that_fits():
    assert mesh_problems(job({"fsdp": 2, "tensor": 2, "context": 2}), 8) == []


def test_everything_at_once():
    cfg = job({"fsdp": 8, "context": 3, "tensor": 5}, data__sequence_length=16, batch_size=12)
    found = mesh_problems(cfg, 8)
    assert len(found) == 6
    text = "\n".join(found)
    assert "execution.mesh.axes {'fsdp': 8, 'context': 3, 'tensor': 5} needs 120 devices, but there are 8" in text
    assert (
        "model.vocab_size: vocab is 64, which tensor=5 doesn't divide; "
        "execution.mesh.axes.tensor may be 1, 2, 4, 8, 16, 32, 64, or make it a multiple of 5"
    ) in found
    assert (
        "model.input_dim: embed is 12, which fsdp=8 doesn't divide; "
        "execution.mesh.axes.fsdp may be 1, 2, 3, 4, 6, 12, or make it a multiple of 8"
    ) in found
    assert "model.layer.feed_forward.hidden_dim: mlp is 16, which tensor=5 doesn't divide" in text
    assert "batch_size: batch is 12, which fsdp=8 doesn't divide; execution.mesh.axes.fsdp may be 1, 2, 3, 4, 6" in text
    assert "data.sequence_length: length is 16, which context=3 x tensor=5 doesn't divide" in text


@pytest.mark.parametrize(
    ("axes", "strategies", "problem"),
    [
        ({"fsdp": 4, "tensor": 2}, (FSDP.Config(),), "no strategy in execution.strategies uses tensor"),
        ({"fsdp": 4, "tensr": 2}, (FSDP.Config(),), "unknown mesh axis 'tensr'; did you mean 'tensor'"),
        (
            {"context": 2, "tensor": 2, "fsdp": 2},
            (RingAttention.Config(), TensorParallel.Config(), FSDP.Config()),
            "execution.strategies lists tensor after a context strategy",
        ),
    ],
)
def test_one_problem(axes, strategies, problem):
    (found,) = mesh_problems(job(axes, strategies), 8)
    assert problem in found


class FourExperts(FeedForward):
    """Declares experts; nothing calls it."""

    class Config(FeedForward.Config):
        hidden_dim: int = 16
        num_experts: int = 4

    def setup(self):
        self.add_param("up", (self.config.num_experts, self.config.input_dim), axes=("experts", "embed"))

    def forward(self, x, sequences):
        return x


def test_fewer_experts_than_expert_shards():
    cfg = job({"expert": 8})
    cfg.model.layer.set(feed_forward=FourExperts.Config())
    assert mesh_problems(cfg, 8) == [
        "model.layer.feed_forward.num_experts is 4, fewer experts than the 8 expert shards of expert=8; "
        "execution.mesh.axes.expert may be 1, 2, 4, or make it a multiple of 8"
    ]


class Piped(FourExperts):
    """Takes batches in parts."""

    class Config(FourExperts.Config):
        microbatches: int = 4


def test_rows_of_a_pipelines_microbatch():
    cfg = job({"fsdp": 4, "tensor": 2})
    cfg.model.layer.set(feed_forward=Piped.Config())
    assert mesh_problems(cfg, 8) == [
        "batch_size (8) / model.layer.feed_forward.microbatches (4): batch is 2, which fsdp=4 doesn't divide; "
        "execution.mesh.axes.fsdp may be 1, 2, or make it a multiple of 4"
    ]


def test_no_mesh_no_problem():
    assert mesh_problems(Job(), 8) == []
