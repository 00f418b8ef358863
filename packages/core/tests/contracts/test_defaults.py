"""What a contract does where an implementation says nothing: the least that callers may rely on."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import KernelPolicy
from kanawa.config.json_form import to_json
from kanawa.config.json_load import from_json
from kanawa.contracts import (
    Block,
    Checkpointer,
    DataSource,
    ExecutionConfig,
    FeedForward,
    GradientStrategy,
    Loader,
    Model,
    ModelLoss,
    Optimizer,
    Positions,
    PrecisionConfig,
    SequenceMixer,
    Service,
    StoredModel,
    Strategy,
    TokenDispatcher,
    Workload,
)
from kanawa.errors import ConfigError
from kanawa.guarded_read import stays_inside


class Rows(DataSource):
    """Three rows of nothing."""

    num_rows, vocab_size, digest = 3, 8, "0"

    def row(self, index):
        return {}


class Plain(Optimizer):
    def transformation(self, specs, learning_rate):
        return None


class NoRules(Strategy):
    def param_rules(self):
        return ()

    def activation_rules(self):
        return ()


class Quiet(Service):
    def start(self, run):
        """Nothing."""

    def stop(self, run):
        """Nothing."""


class Nowhere(Positions):
    """Overrides nothing."""


class Mixer(SequenceMixer):
    def forward(self, x, sequences, cache=None):
        return x, cache


class Layer(Block):
    def forward(self, x, sequences, cache=None):
        return x, cache


def test_positions_that_say_nothing_do_nothing():
    q, k, at = jnp.ones((1, 3, 1, 2)), jnp.zeros((1, 3, 1, 2)), jnp.arange(3)[None]
    (rotated, bias), _ = kn.functional(Both.Config().build())({}, {}, q, k, at)
    assert all(a is b for a, b in zip(rotated, (q, k), strict=True))
    assert bias is None


class Both(kn.Module):
    class Config(kn.Module.Config):
        positions: Positions.Config = Nowhere.Config(head_dim=2, num_heads=1)

    def setup(self):
        self.add_child("positions", self.config.positions)

    def forward(self, q, k, at):
        return self.positions.rotate(q, k, at), self.positions.bias(at, at, 1)


@pytest.mark.parametrize("kind", [Mixer, Layer])
def test_what_keeps_nothing_needs_no_cache(kind):
    assert kind.Config(input_dim=4).build().cache_spec(2, 8, "float32") == {}


def test_a_source_of_rows_that_never_were_text():
    source = Rows.Config().build()
    assert source.packed is True
    assert source.tokenizer is None
    assert source.held_out() is None
    assert source.documents("train") is None
    assert source.target_bytes(np.zeros(2), np.ones(2)) is None
    assert (source.config.sequence_length, source.config.seed) == (512, 0)


def test_an_optimizer_that_averages_nothing_and_counts_nothing():
    optimizer, params = Plain.Config().build(), {"w": jnp.ones(2)}
    assert optimizer.evaluated(params, {}) is params
    assert optimizer.num_updates({"count": jnp.int32(1)}) is None


def test_a_strategy_of_rules_alone():
    assert NoRules.Config().build().distributed() == ()


def test_a_service_may_ignore_events():
    service = Quiet.Config().build()
    assert service.event(None, {"event": "unheard of"}) is None
    assert service.config.stop_seconds == 10.0


def test_a_batch_is_the_language_models_unless_the_model_says():
    assert Model.batch.__name__ == "Batch"
    assert issubclass(FeedForward, kn.Module)


class Sum(Model):
    """The loss is the sum of two parameters, times the batch."""

    def setup(self):
        for name in ("free", "fixed"):
            self.add_param(name, (), axes=(), init=kn.ones)

    def forward(self, batch):
        total = self.param("free") * 2.0 + self.param("fixed")
        self.add_loss("sum", total * batch, 1.0)
        assert self.train


class Whole(GradientStrategy):
    def gradients(self, loss, params, state, batch, key):
        def value(p):
            outputs = loss(p, state, batch, key)
            return outputs.total_loss(), outputs

        return jax.grad(value, has_aux=True)(params)


def test_fixed_parameters_get_no_gradient_and_still_count():
    loss = ModelLoss(Sum.Config().build(), fixed={"fixed": jnp.float32(10.0)})
    gradient, outputs = Whole.Config().build().gradients(loss, {"free": jnp.float32(1.0)}, {}, 3.0, jax.random.key(0))
    assert set(gradient) == {"free"}
    assert float(gradient["free"]) == 6.0
    assert float(outputs.total_loss()) == 36.0
    assert loss.complete({"free": 1}) == {"fixed": jnp.float32(10.0), "free": 1}
    assert ModelLoss(Sum.Config().build()).complete({"a": 1}) == {"a": 1}


def test_the_execution_config_names_the_memories_there_are():
    with pytest.raises(ConfigError, match="optimizer_memory is 'disk', expected one of device, pinned_host"):
        ExecutionConfig(optimizer_memory="disk").freeze()
    assert ExecutionConfig().freeze().strategies == ()
    assert hash(KernelPolicy())


def test_precision_is_checked_when_it_is_made():
    assert PrecisionConfig(compute="bfloat16").precision() == kn.Precision("bfloat16", "float32")
    for name in ("int4", "float64", "complex64", "nonsense"):
        with pytest.raises(ConfigError, match=rf"compute: expected Literal\['float32', .* got '{name}'"):
            PrecisionConfig(compute=name)
        with pytest.raises(ConfigError, match=f"precision.compute is '{name}'"):
            kn.Precision(name)


class Job(Workload):
    def programs(self, environment):
        return {}


def test_a_workload_takes_a_model_that_is_built_already():
    cfg = Job.Config(model=Sum.Config())
    model = Sum.Config().build()
    assert cfg.build(model=model).model is model
    assert isinstance(cfg.build().model, Sum)
    assert cfg.batch_shape() is None
    assert Job.Config._schema.placement == {"execution"}


class Local(TokenDispatcher):
    """Sorts rows by expert, one choice a token."""

    def dispatch(self, x, expert_ids):
        order = jnp.argsort(expert_ids[:, 0])
        sizes = jnp.bincount(expert_ids[:, 0], length=self.config.num_experts)
        return x[order], sizes, order

    def combine(self, rows, weights, plan):
        return jnp.zeros_like(rows).at[plan].set(rows) * weights


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A way that a strategy brings for experts."""

    operation: str = "experts"
    name: str = "elsewhere"

    def through(self, dispatcher, experts, x, expert_ids, weights):
        return -dispatcher.on_one_shard(experts, x, expert_ids, weights)


class Mixture(kn.Module):
    class Config(kn.Module.Config):
        dispatcher: TokenDispatcher.Config = Local.Config()

    def setup(self):
        self.add_child("dispatcher", self.config.dispatcher, num_experts=3)

    def forward(self, x, ids, weights):
        def experts(rows, sizes):
            factor = jnp.repeat(jnp.arange(1.0, 4.0), sizes, total_repeat_length=rows.shape[0])
            return rows * factor[:, None]

        return self.dispatcher.through(experts, x, ids, weights)


def test_a_dispatcher_brings_tokens_to_experts_and_back_in_order():
    x = jnp.arange(12.0).reshape(2, 3, 2)
    ids = jnp.array([[[2], [0], [1]], [[0], [2], [2]]])
    weights = jnp.full((2, 3, 1), 0.5)
    mixture = kn.functional(Mixture.Config().build())
    y, _ = mixture({}, {}, x, ids, weights)
    assert jnp.array_equal(y, x * (ids.astype(jnp.float32) + 1.0) * 0.5)
    with kn.use_plan(kn.ExecutionPlan(distributed=(Elsewhere(),))):
        spread, _ = mixture({}, {}, x, ids, weights)
    assert jnp.array_equal(spread, -y), "the plan's way is asked, and no mixture knows"


class Kept(Checkpointer):
    def steps(self):
        return [2, 10, 7]

    def save(self, step, **items):
        return True

    def commit(self, step):
        """Nothing."""

    def restore(self, abstract, *, step=None):
        return None

    def wait(self):
        """Nothing."""

    def close(self):
        """Nothing."""


def test_a_checkpointer_knows_its_folder_and_newest_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = Kept.Config().build(directory="runs/a")
    assert kept.latest() == 10
    assert kept.location(7) == str(tmp_path / "runs" / "a" / "7")
    assert kept.on_event("checkpoint_committed", {}) is None
    assert (kept.keep_last_n, kept.keep_every_n_steps, kept.read_only) == (3, None, False)


class Lists(Loader):
    def __iter__(self):
        yield from ()


def test_a_loader_has_every_row_of_the_batch_unless_told():
    source = Rows.Config().build()
    assert Lists.Config().build(source=source, global_batch=3).local_rows == (0, 1, 2)
    mine = Lists.Config().build(source=source, global_batch=4, local_rows=range(2, 4), start_row=8)
    assert (mine.local_rows, mine.start_row) == ((2, 3), 8)


def test_a_stored_model_writes_the_files_it_carries(tmp_path):
    given = tmp_path / "given.txt"
    given.write_bytes(b"vocabulary")
    (tmp_path / "out").mkdir()
    StoredModel(kn.Config(), {}, files={"a.txt": given, "b.txt": b"template"}).write_files(tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_bytes() == b"vocabulary"
    assert (tmp_path / "out" / "b.txt").read_bytes() == b"template"


def test_links_out_of_a_folder_are_told_from_the_hubs_own_cache(tmp_path):
    folder = tmp_path / "model"
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    for made in (folder, snapshot, blobs):
        made.mkdir(parents=True)
    secret, blob = tmp_path / "secret", blobs / "0f"
    for file in (secret, blob, folder / "own"):
        file.write_text("x")
    (folder / "out").symlink_to(secret)
    (snapshot / "weights").symlink_to(blob)
    assert stays_inside(folder, folder / "own")
    assert not stays_inside(folder, folder / "out")
    assert not stays_inside(folder, Path(folder, "..", "secret"))
    assert stays_inside(snapshot, snapshot / "weights")
    assert not stays_inside(folder, blob)


@pytest.mark.parametrize("name", ["onednn", "native_products"])
def test_fields_that_older_configs_hold_are_left_out_and_a_refusal_of_native_matmuls_pins_the_reference(name):
    saved = to_json(ExecutionConfig()) | {"materialize": True, "unroll_layers": 3}
    assert from_json(saved | {name: True}) == ExecutionConfig()
    former = json.loads(json.dumps(saved | {name: False, "kernels": {"attention": "attention.any.reference"}}))
    pins = {"matmul": "matmul.any.xla", "attention": "attention.any.reference"}
    assert from_json(former) == ExecutionConfig(kernels=pins)
