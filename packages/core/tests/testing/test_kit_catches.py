"""Known-bad implementations, each with the check of the kit that has to fail for it."""

import threading
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import DataSource, Optimizer, SequenceMixer, Service, Strategy
from kanawa.testing.data_source import DataSourceConformance
from kanawa.testing.layer import LayerConformance
from kanawa.testing.mixer import MixerConformance
from kanawa.testing.modifier import ModifierConformance
from kanawa.testing.optimizer import OptimizerConformance
from kanawa.testing.service import ServiceConformance
from kanawa.testing.strategy import StrategyConformance
from tiny_lm import TinyLM


def kit_for(base, **methods):
    """Returns an instance of a kit class whose methods return these values, made anew at each call."""
    return type("Kit", (base,), {name: (lambda self, v=value: v()) for name, value in methods.items()})()


def caught(kit, test, *fixtures):
    """Returns what the check says of the implementation; fails where it passes it."""
    with pytest.raises(AssertionError) as error:
        getattr(kit, test)(*fixtures)
    return str(error.value)


# --- optimizers ------------------------------------------------------------------------------------------------------


class _State(NamedTuple):
    average: Any


class Cautious(Optimizer):
    """Drops what disagrees with its average, and scales up the rest: by each layer's share, or by the whole stack's."""

    class Config(Optimizer.Config):
        mixes: bool = True

    def transformation(self, specs, learning_rate):
        mixes, outer = self.config.mixes, self

        class Transformation:
            def init(self, params):
                return {"cautious": _State({path: jnp.zeros_like(p) for path, p in params.items()})}

            def update(self, grads, state, params=None):
                before, changes, average = state["cautious"].average, {}, {}
                for path, grad in grads.items():
                    average[path] = 0.9 * before[path] + 0.1 * grad
                    axes = outer.axes(specs[path], grad.ndim)
                    agrees = (average[path] * grad > 0).astype(grad.dtype)
                    share = jnp.mean(agrees, axis=None if mixes else axes, keepdims=True)
                    changes[path] = -0.03 * jnp.sign(average[path]) * agrees / jnp.maximum(share, 0.1)
                return changes, {"cautious": _State(average)}

        return Transformation()

    def axes(self, spec, ndim):
        return tuple(range(1 if "layers" in spec.axes else 0, ndim))


def test_an_optimizer_that_mixes_layers_is_caught():
    test = "test_each_layer_of_a_stack_is_updated_by_itself"
    assert "layers are mixed in a reduction" in caught(kit_for(OptimizerConformance, config=Cautious.Config), test)
    getattr(kit_for(OptimizerConformance, config=lambda: Cautious.Config(mixes=False)), test)()


# --- layers and mixers -----------------------------------------------------------------------------------------------


@jax.custom_vjp
def _twice(x):
    return 2.0 * x


_twice.defvjp(lambda x: (2.0 * x, None), lambda _, g: (3.0 * g,))


class Scale(kn.Module):
    """A layer that multiplies; its subclasses get one thing wrong."""

    class Config(kn.Module.Config):
        input_dim: int = 4

    def setup(self):
        self.add_param("scale", (self.config.input_dim,), axes=("embed",), init=kn.ones)

    def scale(self):
        return self.param("scale")[None, None]

    def forward(self, x):
        return x * self.scale()


class WrongGradient(Scale):
    def forward(self, x):
        return x * _twice(self.scale())


class CountsItsCalls(Scale):
    calls = 0

    def forward(self, x):
        CountsItsCalls.calls += 1
        return x * self.scale() + CountsItsCalls.calls


class WidensDtype(Scale):
    def forward(self, x):
        return x.astype(jnp.float32) * self.param("scale", dtype="float32")[None, None]


@pytest.mark.parametrize(
    ("layer", "test", "said"),
    [
        (WrongGradient, "test_gradients_are_finite_reach_every_parameter_and_survive_remat", "differences"),
        (CountsItsCalls, "test_scanned_equals_written_out", "Mismatch"),
        (CountsItsCalls, "test_compiled_equals_eager_and_is_finite", "Mismatch"),
        (WidensDtype, "test_compute_dtype_is_kept", "float32"),
    ],
)
def test_a_bad_layer_is_caught(layer, test, said):
    kit = kit_for(LayerConformance, config=layer.Config)
    type(kit).inputs = lambda self, key: (jax.random.normal(key, (2, 3, 4)),)
    assert said in caught(kit, test)


class RunningMean(SequenceMixer):
    """The mean of all tokens before and at each; its subclasses look where they must not."""

    class Config(SequenceMixer.Config):
        input_dim: int = 4

    def sums(self, x, before):
        return jnp.cumsum(x, axis=1) + before

    def forward(self, x, sequences, cache=None):
        before = jnp.zeros_like(x[:, :1]) if cache is None else cache["sum"]
        counts = (sequences.token_positions(x.shape[1]) + 1).astype(x.dtype)
        sums = self.sums(x, before)
        return sums / jnp.broadcast_to(counts, x.shape[:2])[..., None], {"sum": sums[:, -1:]}

    @kn.nowrap
    def cache_spec(self, rows, length, dtype):
        return {"sum": ParamSpec((rows, 1, 4), ("batch", None, "embed"), dtype, kn.zeros)}


class SeesItsPiece(RunningMean):
    """Causal over a whole row, but not inside a piece that is decoded with a cache."""

    def forward(self, x, sequences, cache=None):
        if cache is None:
            return super().forward(x, sequences)
        ahead, kept = super().forward(x, sequences, cache)
        return ahead + 0.1 * jnp.roll(x, -1, axis=1), kept


class ForgetsItsCache(RunningMean):
    def sums(self, x, before):
        return jnp.cumsum(x, axis=1) + 0.0 * before


class SeesTheNext(RunningMean):
    def sums(self, x, before):
        ahead = jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)
        return jnp.cumsum(x, axis=1) + before + 0.1 * ahead


@pytest.mark.parametrize(
    ("mixer", "test"),
    [
        (SeesItsPiece, "test_cached_decode_equals_the_full_forward"),
        (ForgetsItsCache, "test_cached_decode_equals_the_full_forward"),
        (SeesTheNext, "test_no_token_sees_the_future"),
        (RunningMean, "test_packed_segments_do_not_see_each_other"),
    ],
)
def test_a_mixer_that_looks_where_it_must_not_is_caught(mixer, test):
    assert "Mismatch" in caught(kit_for(MixerConformance, config=mixer.Config), test)


def test_the_mixer_that_is_right_passes():
    kit = kit_for(MixerConformance, config=RunningMean.Config)
    kit.test_cached_decode_equals_the_full_forward()
    kit.test_no_token_sees_the_future()


# --- data sources ----------------------------------------------------------------------------------------------------


class Counting(DataSource):
    """Row r counts up from r; its subclasses get one thing wrong."""

    class Config(DataSource.Config):
        sequence_length: int = 8

    num_rows = None
    vocab_size = 100
    seeded = True

    @property
    def digest(self):
        return f"counting {self.config.seed if self.seeded else ''}"

    def tokens(self, index):
        return (np.arange(9) + index + self.config.seed) % 100

    def row(self, index):
        tokens = self.tokens(index).astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "target_ids": tokens[1:],
            "positions": np.arange(8, dtype=np.int32),
            "segment_ids": np.ones(8, np.int32),
            "loss_weights": np.ones(8, np.float32),
        }


class DependsOnCalls(Counting):
    calls = 0

    def tokens(self, index):
        self.calls += 1
        return super().tokens(index + (self.calls > 6))


class ReusesItsBuffer(Counting):
    def row(self, index):
        if not hasattr(self, "kept"):
            self.kept = super().row(index)
        for name, array in super().row(index).items():
            self.kept[name][...] = array
        return self.kept


class ForgetsToShift(Counting):
    def row(self, index):
        row = super().row(index)
        return {**row, "target_ids": row["input_ids"]}


class IgnoresTheIndex(Counting):
    def tokens(self, index):
        return super().tokens(0)


class ForgetsTheSeed(Counting):
    seeded = False


class PositionsGoOn(Counting):
    def row(self, index):
        return {**super().row(index), "segment_ids": np.repeat(np.array([1, 2], np.int32), 4)}


@pytest.mark.parametrize(
    ("source", "test", "said"),
    [
        (DependsOnCalls, "test_rows_depend_on_the_index_alone", "is another when asked"),
        (ReusesItsBuffer, "test_a_caller_may_keep_and_change_a_row", "changed when another row"),
        (ForgetsToShift, "test_targets_are_the_next_tokens", "one place on"),
        (IgnoresTheIndex, "test_rows_differ", "every row is the same"),
        (ForgetsTheSeed, "test_the_digest_is_stable_and_tells_seeds_apart", "another seed"),
        (PositionsGoOn, "test_positions_count_up_inside_a_segment", "segments start at 0"),
    ],
)
def test_a_bad_data_source_is_caught(source, test, said):
    getattr(kit_for(DataSourceConformance, source=lambda: Counting.Config().build()), test)()
    assert said in caught(kit_for(DataSourceConformance, source=lambda: source.Config().build()), test)


class Ending(Counting):
    """Ten rows, two of them held out."""

    class Config(Counting.Config):
        begin: int = 0
        end: int = 10

    packed = False
    num_rows = property(lambda self: self.config.end - self.config.begin)

    def row(self, index):
        return super().row(self.config.begin + index)

    def held_out(self):
        return self.once("validation")

    def once(self, split=None):
        begin, end = {None: (0, 10), "train": (0, 8), "validation": (8, 10)}[split]
        return self.config.clone().set(begin=begin, end=end).build()


class ForgetsTheRest(Ending):
    def once(self, split=None):
        return super().once(split or "train")


def test_a_source_that_calls_its_training_rows_all_the_data_is_caught():
    test = "test_splits_add_up_to_all_the_data"
    getattr(kit_for(DataSourceConformance, source=lambda: Ending.Config().build()), test)()
    kit = kit_for(DataSourceConformance, source=lambda: ForgetsTheRest.Config().build())
    assert "once() must be all the data" in caught(kit, test)


# --- modifiers -------------------------------------------------------------------------------------------------------


class Widen(kn.Modifier):
    """Sets the hidden size; its subclasses get one thing wrong."""

    class Config(kn.Modifier.Config):
        sizes: list[int] = [32, 64]

    def __call__(self, cfg):
        cfg.layer.feed_forward.set(hidden_dim=self.config.sizes[0])
        return cfg


class UsesItselfUp(Widen):
    calls = 0

    def __call__(self, cfg):
        cfg.layer.feed_forward.set(hidden_dim=self.config.sizes[self.calls])
        self.calls += 1
        return cfg


class TouchesMore(Widen):
    def __call__(self, cfg):
        cfg.set(vocab_size=65)
        return super().__call__(cfg)


class BreaksTheModel(Widen):
    def __call__(self, cfg):
        cfg.layer.feed_forward.set(hidden_dim=kn.REQUIRED)
        return cfg


@pytest.mark.parametrize(
    ("modifier", "test", "error"),
    [
        (UsesItselfUp, "test_it_does_the_same_again", AssertionError),
        (TouchesMore, "test_it_changes_only_what_it_may", AssertionError),
        (BreaksTheModel, "test_what_could_be_built_still_can", kn.KanawaError),
    ],
)
def test_a_bad_modifier_is_caught(modifier, test, error):
    for kind, expected in ((Widen, None), (modifier, error)):
        kit = kit_for(ModifierConformance, modifier=lambda kind=kind: kind.Config().build(), config=TinyLM.Config)
        type(kit).touches = ("layer.feed_forward.hidden_dim",)
        if expected is None:
            getattr(kit, test)()
        else:
            with pytest.raises(expected):
                getattr(kit, test)()


# --- strategies ------------------------------------------------------------------------------------------------------


class Nothing(Strategy):
    """Splits nothing, and says that it does."""

    def param_rules(self):
        return ()

    def activation_rules(self):
        return ()


def strategy_kit(strategy, model=TinyLM):
    return kit_for(
        StrategyConformance,
        strategies=lambda: (strategy.Config().build(),),
        mesh_axes=lambda: {"fsdp": -1},
        model=lambda: model.Config(input_dim=16, vocab_size=64).build(),
    )


class DependsOnTheMesh(TinyLM):
    """Its loss knows how it is split, as a strategy's own code over shards might make it."""

    def logits(self, x):
        parts = jax.sharding.get_abstract_mesh().size or 1
        return super().logits(x) / parts


def test_a_strategy_that_does_nothing_is_caught():
    kit = strategy_kit(Nothing)
    type(kit).sharded = ("table",)
    assert "table" in caught(kit, "test_loss_and_gradients_equal_one_device")


def test_a_loss_that_depends_on_the_mesh_is_caught():
    strategy_kit(Nothing).test_loss_and_gradients_equal_one_device()
    assert "Mismatch" in caught(strategy_kit(Nothing, DependsOnTheMesh), "test_loss_and_gradients_equal_one_device")


# --- services --------------------------------------------------------------------------------------------------------


class Quiet(Service):
    """Does nothing; its subclasses get one thing wrong."""

    def start(self, run):
        del run

    def stop(self, run):
        del run


class NeverStops(Quiet):
    released: ClassVar[threading.Event] = threading.Event()

    def stop(self, run):
        self.released.wait()


class RaisesAtTheEnd(Quiet):
    def stop(self, run):
        raise RuntimeError(run.directory)


class KnowsTwoEvents(Quiet):
    def event(self, run, event):
        assert event["event"] in ("run_started", "step"), "unknown event"


class AddsToEvents(Quiet):
    def event(self, run, event):
        event["seen"] = True


@pytest.mark.parametrize(
    ("service", "test", "said"),
    [
        (NeverStops, "test_a_run_that_fails_at_once_can_be_stopped", "stop still runs after 0.2 s"),
        (RaisesAtTheEnd, "test_a_run_that_fails_at_once_can_be_stopped", "stop raised RuntimeError"),
        (KnowsTwoEvents, "test_it_sees_a_run_from_start_to_end_and_leaves_no_thread", "unknown event"),
        (AddsToEvents, "test_events_are_not_changed", "seen"),
    ],
)
def test_a_bad_service_is_caught(service, test, said, tmp_path):
    kit = kit_for(ServiceConformance, config=service.Config)
    type(kit).stop_seconds = 0.2
    assert said in caught(kit, test, kit.run_of(tmp_path))
    NeverStops.released.set()
