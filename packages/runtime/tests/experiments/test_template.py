"""The experiment that a bare model gets: it builds, its data fits, and it says what it can't do."""

import jax
import kanawa as kn
import pytest
from kanawa.contracts import ImageBatch, MaskedLM, Model
from kanawa.errors import CompositionError, UsageError
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.experiments.folders import run_and_start
from kanawa_runtime.experiments.template import LanguageModelTemplate
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.train.loop import Loop
from tiny_lm import TinyLM, tiny

TEMPLATE = LanguageModelTemplate()


class Both(MaskedLM):
    def forward(self, batch):
        del batch


class Pictures(Model):
    batch = ImageBatch

    def forward(self, batch):
        del batch


def test_text_where_the_vocabulary_has_room_for_it():
    assert isinstance(TEMPLATE.experiment(TinyLM.Config(vocab_size=64)).data, RandomTokens.Config)
    for size, learned in ((300, 300), (50_000, 2048)):
        data = TEMPLATE.experiment(TinyLM.Config(vocab_size=size)).data
        assert isinstance(data, TextSource.Config)
        assert data.build().vocab_size == learned


def test_a_masked_model_gets_hidden_tokens_that_it_has_an_id_for():
    data = TEMPLATE.experiment(Both.Config(vocab_size=300, input_dim=8)).data
    assert isinstance(data, MaskedTokens.Config)
    assert data.build().vocab_size == 300


def test_sizes_suit_the_target():
    model = TinyLM.Config()
    here, pod = TEMPLATE.experiment(model), TEMPLATE.experiment(model, "tpu", 256)
    assert (here.batch_size, here.data.sequence_length, here.precision.compute) == (8, 256, "float32")
    assert (pod.batch_size, pod.data.sequence_length, pod.precision.compute) == (1024, 2048, "bfloat16")


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_the_schedule_fits_a_run_of_any_length(steps):
    cfg = TEMPLATE.experiment(TinyLM.Config()).set(steps=steps)
    assert set(kn.compose(cfg).workload().rule.specs) == {"table", "layer.feed_forward.up", "layer.feed_forward.down"}


def test_other_models_are_refused_with_what_to_do():
    assert TEMPLATE.refusal(TinyLM.Config()) == TEMPLATE.refusal(Pictures.Config()) == ""
    # Rows whose files are still to be named are described.
    assert not kn.compose(TEMPLATE.experiment(Pictures.Config())).config.data.build().is_named
    with pytest.raises(CompositionError, match="Pictures learns from records of ImageBatch.* name a source"):
        kn.compose(TEMPLATE.experiment(Pictures.Config()), data="random-tokens")
    with pytest.raises(UsageError, match="--data gives text, and Pictures learns from records of ImageBatch"):
        kn.compose(TEMPLATE.experiment(Pictures.Config()), data="embedded")


def test_data_with_more_ids_than_the_model_is_refused_before_training():
    cfg = TEMPLATE.experiment(TinyLM.Config(vocab_size=300)).set(model=TinyLM.Config(vocab_size=100))
    with pytest.raises(CompositionError, match="data has 300 token ids, but model.vocab_size is 100"):
        kn.compose(cfg)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    Loop(kn.compose(tiny()), folder, steps=2).execute()
    return folder


def test_a_run_goes_on_in_its_own_directory(trained):
    composition = kn.compose(str(trained))
    assert composition.config.steps == 2  # what was asked for is what the schedule spans
    assert run_and_start(composition, None, None) == (trained, None)
    assert run_and_start(composition, str(trained), None) == (trained, None)
    assert Loop(composition, trained, steps=3).execute().start_step == 2


def test_a_run_on_other_data_is_a_new_run_that_starts_from_its_weights(trained, tmp_path):
    composition = kn.compose(str(trained), data="random-tokens", overrides=["data.vocab_size=64"])
    directory, start = run_and_start(composition, None, None)
    assert (directory.as_posix(), start) == ("runs/first-tuned", trained)
    assert run_and_start(composition, str(tmp_path / "mine"), None) == (tmp_path / "mine", trained)
    (tmp_path / "elsewhere").mkdir()
    assert run_and_start(composition, None, str(tmp_path / "elsewhere"))[1].name == "elsewhere"
    with pytest.raises(UsageError, match="there is no run .*nowhere"):
        run_and_start(composition, None, str(tmp_path / "nowhere"))


def test_an_imported_run_is_tuned_and_needs_data(tmp_path):
    model = TinyLM.Config(vocab_size=300)
    params = kn.arrays.tree.flatten_paths(kn.initialize(model.build(), jax.random.key(0)))
    stored = kn.contracts.StoredModel(model, jax.device_get(params))
    RunStore().save(tmp_path / "imported", stored)
    composition = kn.compose(str(tmp_path / "imported"))
    assert composition.config.steps == 1000
    assert composition.config.learner.schedule.peak == pytest.approx(2e-4)
    with pytest.raises(UsageError, match="holds a model and no data to train it on; say which: kanawa train"):
        run_and_start(composition, None, None)
