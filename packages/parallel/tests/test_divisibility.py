"""A mesh that doesn't fit is explained whole: every axis, its config path and the sizes that would do."""

import kanawa as kn
import pytest
from kanawa.composition.mesh_rules import fit_cuts
from kanawa.composition.target import parse_target
from kanawa.config import origin
from kanawa.contracts import BatchShape, DeviceMesh, FeedForward, GradientStrategy, Model, Stack, Workload
from kanawa.plugins import MeshRule
from kanawa_parallel import divisibility
from kanawa_parallel.accumulate import Accumulate
from kanawa_parallel.modifiers import strategies_for
from kanawa_parallel.strategies.fsdp import FSDP
from kanawa_parallel.strategies.ring import RingAttention
from kanawa_parallel.strategies.tensor import TensorParallel
from tiny_lm import TinyLM


class Rows(kn.Config):
    sequence_length: int = 16


class Job(Workload):
    """What a trainer has of a batch and a mesh."""

    class Config(Workload.Config):
        model: Model.Config = TinyLM.Config(input_dim=12, vocab_size=64)
        data: Rows = Rows()
        batch_size: int = 8
        gradients: GradientStrategy.Config | None = None

        def batch_shape(self):
            return BatchShape(self.batch_size, self.data.sequence_length)

    def programs(self, environment):
        return {}


def mesh_problems(cfg, devices):
    return divisibility.mesh_problems(cfg, cfg.model.build(), devices)


def job(axes, strategies=None, **changes):
    cfg = Job.Config()
    chosen = strategies_for(axes) if strategies is None else strategies
    cfg.execution.set(mesh=DeviceMesh.Config(axes=axes), strategies=chosen)
    for path, value in changes.items():
        cfg.set_path(path.replace("__", "."), value)
    return cfg


def test_a_mesh_that_fits():
    assert mesh_problems(job({"fsdp": 2, "tensor": 2, "context": 2}), 8) == []


def test_everything_at_once():
    cfg = job({"fsdp": 8, "context": 3, "tensor": 5}, data__sequence_length=16, batch_size=12)
    found = mesh_problems(cfg, 8)
    assert len(found) == 5
    text = "\n".join(found)
    assert "execution.mesh.axes {'fsdp': 8, 'context': 3, 'tensor': 5} needs 120 devices, but there are 8" in text
    assert (
        "model.vocab_size: vocab is 64, which tensor=5 doesn't divide; "
        "execution.mesh.axes.tensor may be 1, 2, 4, 8, 16, 32, 64, or make it a multiple of 5"
    ) in found
    assert "model.layer.feed_forward.hidden_dim: mlp is 16, which tensor=5 doesn't divide" in text
    assert "batch_size: batch is 12, which fsdp=8 doesn't divide; execution.mesh.axes.fsdp may be 1, 2, 3, 4, 6" in text
    assert "data.sequence_length: length is 16, which context=3 x tensor=5 doesn't divide" in text


def test_a_large_parameter_must_find_an_axis_for_fsdp_and_a_small_one_stays_whole():
    wide = {"model__input_dim": 20_001}
    (found,) = mesh_problems(job({"fsdp": 8}, model__vocab_size=65, **wide), 8)
    assert found.startswith(
        "model.input_dim: embed is 20001, which fsdp=8 doesn't divide; execution.mesh.axes.fsdp may"
    )
    assert mesh_problems(job({"fsdp": 8}, model__vocab_size=64, **wide), 8) == [], "the vocabulary takes its place"
    assert mesh_problems(job({"fsdp": 8}), 8) == [], "embed is 12, and nothing of this size is worth a split"


def test_microbatches_that_do_not_divide_the_batch():
    cfg = job({"fsdp": 4}, batch_size=24)
    assert mesh_problems(cfg, 4) == []
    cfg.set(gradients=Accumulate.Config(microbatches=5))
    assert mesh_problems(cfg, 4) == [
        "gradients.microbatches is 5, which doesn't divide 24 rows (batch_size); it may be 1, 2, 3, 4, 6, 8, 12, 24"
    ]


def test_a_rules_microbatches_become_the_nearest_that_divide():
    cfg, rule = job({"fsdp": 8}, batch_size=40), MeshRule(name="rows", platform="cpu", mesh={"fsdp": 8})
    model, target = cfg.model.build(), parse_target("cpu-8")
    cfg.set(gradients=Accumulate.Config(microbatches=4))
    assert not list(fit_cuts(cfg, model, rule, target)), "a user's own number stays, and is an error"
    with origin("mesh rule"):
        cfg.set(gradients=Accumulate.Config(microbatches=4))
    said = "mesh rule rows: gradients.microbatches is 5: the rule's 4 don't cut batch_size (40) evenly"
    assert list(fit_cuts(cfg, model, rule, target)) == [said]
    assert cfg.gradients.microbatches == 5
    assert not mesh_problems(cfg, 8)


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


class Slots(FeedForward):
    """A stranger's layer: an axis, a field and a size derived from it that no table of ours knows."""

    class Config(FeedForward.Config):
        hidden_dim: int = 6
        num_memories: int = 5
        width_of_a_memory: int = 3

    def setup(self):
        cfg = self.config
        wide = cfg.num_memories * cfg.width_of_a_memory
        self.add_param("memories", (wide, cfg.input_dim), axes=("heads", "embed"))
        self.add_param("up", (cfg.input_dim, cfg.hidden_dim), axes=("embed", "mlp"))

    def forward(self, x, sequences):
        return x


def test_a_strangers_field_is_found_by_what_it_changes():
    cfg = job({"tensor": 4, "fsdp": 2})
    cfg.model.layer.set(feed_forward=Slots.Config())
    problems = mesh_problems(cfg, 8)
    assert (
        "model.layer.feed_forward.num_memories: heads is 15, which tensor=4 doesn't divide; "
        "execution.mesh.axes.tensor may be 1, 3, 5, 15, or make it a multiple of 4"
    ) in problems
    assert any(problem.startswith("model.layer.feed_forward.hidden_dim: mlp is 6") for problem in problems)


class Fixed(FeedForward):
    """A size that no field sets."""

    def setup(self):
        self.add_param("up", (self.config.input_dim, 10), axes=("embed", "mlp"))

    def forward(self, x, sequences):
        return x


def test_a_size_that_no_field_sets_is_named_by_its_parameter():
    cfg = job({"tensor": 4, "fsdp": 2})
    cfg.model.layer.set(feed_forward=Fixed.Config(hidden_dim=4))
    assert [problem.split(",")[0] for problem in mesh_problems(cfg, 8)] == ["model.layer.feed_forward.up: mlp is 10"]


class Piped(Stack):
    """Takes the rows it is given in parts."""

    class Config(Stack.Config):
        parts: int = 4

    @kn.nowrap
    def cuts(self):
        return {"parts": self.config.parts}

    def forward(self, x, sequences, caches=None):
        return x, caches

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        return {}

    @kn.nowrap
    def unstacked(self, params):
        return params


class HoldsStack(Fixed):
    """A layer with a stack inside."""

    class Config(Fixed.Config):
        tower: Stack.Config = Piped.Config(num_layers=1)

    def setup(self):
        self.add_child("tower", self.config.tower, input_dim=self.config.input_dim)


class InTurn(GradientStrategy):
    """Cuts the batch, and runs the layers itself if asked to."""

    class Config(GradientStrategy.Config):
        slices: int = 2

    def cuts(self):
        return {"slices": self.config.slices}

    def gradients(self, loss, params, state, batch, key):
        return {}, None


class Alone(InTurn):
    """Takes the stack's place."""

    replaces_stack = True


class Taught(Job):
    """A job with a gradient strategy."""

    class Config(Job.Config):
        gradients: GradientStrategy.Config = InTurn.Config()


def test_rows_of_a_pipelines_microbatch():
    cfg = job({"fsdp": 4, "tensor": 2})
    cfg.model.layer.set(feed_forward=HoldsStack.Config(hidden_dim=4))
    assert mesh_problems(cfg, 8) == [
        "batch_size (8) / model.layer.feed_forward.tower.parts (4): batch is 2, which fsdp=4 doesn't divide; "
        "execution.mesh.axes.fsdp may be 1, 2, or make it a multiple of 4"
    ]


@pytest.mark.parametrize(
    ("strategy", "path"),
    [
        (InTurn, "batch_size (16) / gradients.slices (2) / model.layer.feed_forward.tower.parts (4): batch is 2"),
        (Alone, "batch_size (16) / gradients.slices (2): batch is 8"),
    ],
)
def test_a_strategy_that_runs_the_layers_itself_cuts_in_the_stacks_place(strategy, path):
    cfg = Taught.Config(batch_size=16, gradients=strategy.Config())
    cfg.model.layer.set(feed_forward=HoldsStack.Config(hidden_dim=4))
    cfg.execution.set(mesh=DeviceMesh.Config(axes={"fsdp": 16}), strategies=strategies_for({"fsdp": 16}))
    cfg.model.set(input_dim=16)
    assert [problem.split(",")[0] for problem in mesh_problems(cfg, 16)] == [path]


def test_no_mesh_no_problem():
    assert mesh_problems(Job.Config(), 8) == []
