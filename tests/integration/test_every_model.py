"""Every catalogued model is an experiment, some once their data are named; nothing here compiles."""

import kanawa as kn
import pytest
from kanawa.composition.environment import environment
from kanawa.errors import UsageError
from kanawa_runtime.data.errors import CorpusError

MODELS = sorted(state.name for state in kn.host().components("models") if state.distribution == "kanawa-layers")
#: Experiments of the name, with data that aren't tokens.
PICTURES = {
    *("vit-tiny", "clip-tiny", "coca-tiny", "vlm-tiny", "dit-tiny", "dit-xl-2", "mmdit-tiny", "vae-tiny"),
    *("sd3-medium", "wan2.1-14b"),
}
#: Models of latents, which no source reads from files.
LATENTS = {name for name in MODELS if name.startswith(("dit-", "sd3.5-", "wan"))} - PICTURES
#: Models of records that are in files, which the user names.
_BEGINNINGS = (
    *("vit-", "resnet-", "sd", "clip-", "coca-", "siglip-", "llava-", "vlm-", "qwen3-vl-"),
    *("whisper-", "parakeet-", "conformer-"),
)
OTHERS = {
    name for name in MODELS if name.startswith(_BEGINNINGS) or name.startswith("gemma3-") and name.endswith("-vision")
} - (PICTURES | LATENTS)
NOT_TEXT = PICTURES | LATENTS | OTHERS


def test_the_catalog_is_as_large_as_the_readme_says():
    assert len(MODELS) == 143


@pytest.mark.parametrize("name", sorted(set(MODELS) - NOT_TEXT))
def test_a_model_is_an_experiment(name):
    composition = kn.compose(name, "cpu")
    workload, place = composition.workload(), environment(composition, "abstract")
    state = workload.abstract_state(place)
    assert set(state.params) == set(workload.specs)
    assert workload.abstract_batch(place).input_ids.shape == (composition.config.batch_size, _length(composition))
    assert composition.config.data.build().vocab_size <= composition.config.model.vocab_size


def _length(composition):
    return composition.config.data.sequence_length


#: Widths, heads and vocabularies that few meshes divide; mixtures; recurrences.
AWKWARD = ("bert-large", "deepseek-v3", "gemma3-1b", "gpt-oss-20b", "gpt2-xl", "mamba2-tiny", "qwen2-1.5b")
FAMILIES = ("cpu-8", "v5e-8", "v5p-512", "v6e-256x4", "h100-8", "b200-64", "trn2-16")
#: Experiments of these names, which come first, have a batch of their own.
FIXED = {"llama-1b", "qwen3-30b-a3b"}


def fits(name, target, monkeypatch):
    # The rule itself: what doesn't fit by it is placed otherwise.
    monkeypatch.setattr("kanawa.composition.experiment.placed", lambda question: None)
    composition = kn.compose(name, target)
    workload, place = composition.workload(), environment(composition, "abstract")
    workload.abstract_state(place)
    assert workload.abstract_batch(place).input_ids.sharding.mesh.size == composition.target.jax_devices
    assert composition.rule is not None


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", AWKWARD)
def test_a_mesh_rule_fits(name, target, monkeypatch):
    fits(name, target, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", sorted(set(MODELS) - NOT_TEXT - FIXED - set(AWKWARD)))
def test_a_mesh_rule_fits_every_model(name, target, monkeypatch):
    fits(name, target, monkeypatch)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_models_are_described_before_their_data_are_named(name):
    composition = kn.compose(name, "cpu")
    workload, place = composition.workload(), environment(composition, "abstract")
    state = workload.abstract_state(place)
    assert set(state.params) == set(workload.specs)
    assert workload.abstract_batch(place)[0].shape[0] == composition.config.batch_size
    source = composition.config.data.build()
    shapes = {name: field.shape for name, field in source.fields.items() if field is not None}
    assert workload.model.flops_per_row(shapes) > 0
    with pytest.raises(CorpusError, match=r"no \w+s are named: name them with --data"):
        source.account()


@pytest.mark.parametrize("name", sorted(LATENTS))
def test_models_of_latents_say_what_to_do(name):
    with pytest.raises(UsageError, match=r"learns from records of \w+.*; name a source of those with --data"):
        kn.compose(name)


@pytest.mark.parametrize("name", ["gemma3-1b", "mamba2-130m", "deepseek-v3"])
def test_a_model_takes_the_place_of_an_experiments(name):
    by_modifier = kn.compose("llama2-7b", modifiers=[f"model:name={name}"]).config
    by_name = kn.compose("llama2-7b", overrides=[f"model={name}"]).config
    assert by_modifier.model == by_name.model == kn.component("models", name)()
    assert by_modifier.learner == by_name.learner == kn.compose("llama2-7b").config.learner
    assert by_modifier.data.vocab_size == by_modifier.model.vocab_size


def test_a_masked_model_gets_the_same_rows_with_tokens_hidden_and_back():
    masked = kn.compose("quickstart", modifiers=["model:name=bert-base"]).config
    assert masked.data.source == kn.compose("quickstart").config.data
    back = kn.compose(masked, modifiers=["model:name=gpt2"]).config
    assert back.data == kn.compose("quickstart").config.data
    random = kn.compose("llama2-7b", modifiers=["model:name=bert-base"], overrides=["data.sequence_length=512"]).config
    assert random.data.build().vocab_size == random.model.vocab_size


def test_models_that_would_learn_nothing_of_the_data_are_refused():
    with pytest.raises(UsageError, match="EncoderLM predicts hidden tokens, and data hides none"):
        kn.compose("quickstart", overrides=["model=bert-base"])
    with pytest.raises(UsageError, match="DecoderLM predicts the next token, and data hides some"):
        kn.compose("bert-base", overrides=["model=gpt2"])
    with pytest.raises(UsageError, match="EncoderDecoderLM learns from records of EncoderDecoderBatch"):
        kn.compose("quickstart", modifiers=["model:name=t5-small"])


def test_a_model_too_small_for_the_data_is_refused_at_once():
    with pytest.raises(UsageError, match="data has 32000 token ids, but model.vocab_size is 2048"):
        kn.compose("llama2-7b", overrides=["model=llama-tiny"])


@pytest.mark.parametrize("state", kn.host().components("experiments"), ids=lambda state: state.name)
def test_every_experiment_builds_its_learner(state):
    kn.compose(state.name, "cpu").workload()
