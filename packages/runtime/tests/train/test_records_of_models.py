"""The trainer takes any model and any record that a source declares: pairs for two towers, images for a classifier."""

from typing import NamedTuple

import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from jaxtyping import Array, Float, Int
from kanawa.contracts import BatchShape, DataSource, Environment, ImageBatch, Model, RowField
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.learn.schedules import Constant
from kanawa_runtime.runs.events import read_events
from kanawa_runtime.train.loop import Loop
from kanawa_runtime.train.screen import LineScreen
from kanawa_runtime.train.trainer import Trainer

ROWS = 10


class Pair(NamedTuple):
    left: Float[Array, "batch features"]
    right: Float[Array, "batch features"]


class Pairs(DataSource):
    """Two noisy views of one vector; nothing is weighted, and there are no tokens."""

    batch = Pair

    class Config(DataSource.Config):
        features: int = 6
        rows: int | None = None

    @property
    def fields(self):
        view = RowField((self.config.features,), "float32", (None,))
        return {"left": view, "right": view}

    @property
    def num_rows(self):
        return self.config.rows

    @property
    def digest(self):
        return f"pairs-{self.config.features}-{self.config.seed}"

    def row(self, index):
        if self.config.rows is not None and index >= self.config.rows:
            raise IndexError(index)
        rng = np.random.default_rng((self.config.seed, index))
        same = rng.normal(size=self.config.features)
        views = [(same + 0.1 * rng.normal(size=same.shape)).astype(np.float32) for _ in range(2)]
        return {"left": views[0], "right": views[1]}

    def held_out(self):
        return Pairs.Config(features=self.config.features, rows=ROWS, seed=99).build()


class TwoTowers(Model):
    """Tells pairs of a batch from all other combinations."""

    batch = Pair

    class Config(Model.Config):
        features: int = 6
        width: int = 8

    def setup(self):
        for tower in ("left", "right"):
            self.add_param(tower, (self.config.features, self.config.width), axes=(None, "embed"))

    def forward(self, batch: Pair) -> None:
        left, right = batch.left @ self.param("left"), batch.right @ self.param("right")
        scores = left @ right.T
        nats = -jnp.diagonal(scores - jnp.log(jnp.sum(jnp.exp(scores), -1, keepdims=True)))
        self.add_loss("contrastive", jnp.sum(nats), nats.shape[0])


class Images(DataSource):
    """Images whose class is their brightest channel; they end, and are padded."""

    batch = ImageBatch

    class Config(DataSource.Config):
        rows: int | None = None

    @property
    def fields(self):
        return {
            "images": RowField((3, 4, 4), "float32", (None, None, None)),
            "target_ids": RowField((), "int32", ()),
            "loss_weights": RowField((), "float32", ()),
        }

    @property
    def num_rows(self):
        return self.config.rows

    @property
    def digest(self):
        return f"images-{self.config.seed}"

    def row(self, index):
        rng = np.random.default_rng((self.config.seed, index))
        images, target = rng.normal(size=(3, 4, 4)).astype(np.float32), index % 3
        images[target] += 2
        return {"images": images, "target_ids": np.int32(target), "loss_weights": np.float32(1)}

    def held_out(self):
        return Images.Config(rows=ROWS, seed=99).build()


class Classifier(Model):
    batch = ImageBatch

    class Config(Model.Config):
        """A linear map."""

    def setup(self):
        self.add_param("weight", (48, 3), axes=(None, None))

    def forward(self, batch: ImageBatch) -> None:
        logits = batch.images.reshape(batch.images.shape[0], -1) @ self.param("weight")
        targets: Int[Array, " batch"] = batch.target_ids
        chosen = jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
        nats = (jnp.log(jnp.sum(jnp.exp(logits), -1)) - chosen) * batch.loss_weights
        self.add_loss("cross_entropy", jnp.sum(nats), jnp.sum(batch.loss_weights))


def trainer(model, data, **fields):
    learner = Learner.Config(schedule=Constant.Config(peak=3e-2))
    return Trainer.Config(model=model.Config(), data=data.Config(), batch_size=4, steps=30, learner=learner, **fields)


@pytest.mark.parametrize(("model", "data", "weighed"), [(TwoTowers, Pairs, 8), (Classifier, Images, 10)])
def test_it_trains_evaluates_saves_and_resumes(tmp_path, model, data, weighed):
    cfg, lines = trainer(model, data), []
    cfg.checkpoints.set(every_steps=10)
    Loop(kn.compose(cfg), tmp_path / "run", screen=LineScreen(lines.append)).execute()
    events = read_events(tmp_path / "run" / "events.jsonl")
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    # Ten rows in batches of four: the rest is padded by rows of weight 0, or dropped where nothing has weights.
    assert [event["tokens"] for event in events if event["event"] == "eval"] == [weighed]
    assert next(event for event in events if event["event"] == "program")["model_flops_per_step"] is None
    assert not any("kanawa generate" in line for line in lines)
    run = kn.open(tmp_path / "run")
    assert run.evaluate().loss == pytest.approx(events_loss(events), rel=1e-5)
    cut = tmp_path / "cut"
    Loop(kn.compose(cfg, overrides=["steps=30"]), cut, steps=12).execute()
    Loop(kn.compose(cfg), cut, steps=30).execute()
    again = [event["loss"] for event in read_events(cut / "events.jsonl") if event["event"] == "step"]
    assert again == losses


def events_loss(events):
    return next(event["loss"] for event in events if event["event"] == "eval")


def test_batches_shard_by_what_the_fields_say(mesh_of_eight):
    shapes = trainer(Classifier, Images).set(batch_size=8).build().abstract_batch(mesh_of_eight)
    assert type(shapes) is ImageBatch
    assert [leaf.sharding.shard_shape(leaf.shape)[0] for leaf in shapes if leaf is not None] == [1, 1, 1]
    tokens = kn.compose(trainer(Classifier, Images)).config
    assert tokens.batch_shape() == BatchShape(tokens.batch_size, 1), "a row that isn't of tokens is one position"


def test_a_record_that_the_model_does_not_take_is_refused():
    with pytest.raises(kn.KanawaError, match="TwoTowers learns from records of Pair, and Images makes ImageBatch"):
        kn.compose(trainer(TwoTowers, Images))


@pytest.fixture
def mesh_of_eight():
    import dataclasses

    import jax

    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    mesh = jax.make_mesh((8,), ("data",))
    plan = dataclasses.replace(Environment().plan, activation_rules=(("batch", ("data",)),))
    return dataclasses.replace(Environment(), mesh=mesh, plan=plan)


class TestPairs(DataSourceConformance):
    def source(self):
        return Pairs.Config(rows=ROWS).build()
