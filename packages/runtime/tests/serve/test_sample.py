"""Samples of a model in training: the prompt's continuation, from whatever parameters there are now."""

import jax
import kanawa as kn
import pytest
from kanawa.contracts import Environment
from kanawa_runtime.data.own_files import own_corpus
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.serve.generate import Generator
from kanawa_runtime.serve.sample import sampler_of
from tiny_lm import TinyLM


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("some text\n" * 9)
    return TextSource.Config(corpus=own_corpus(str(folder)), tokenizer=ByteTokenizer.Config()).build()


def test_samples_follow_the_parameters(text):
    model = TinyLM.Config(vocab_size=300).build()
    sampler = sampler_of("so ", model, text, Environment())
    params = [kn.initialize(model, jax.random.key(seed)) for seed in (0, 1)]
    first, other, again = (sampler.sample(params[i], {}) for i in (0, 1, 0))
    assert first["prompt"] == "so "
    assert len(first["text"]) > 20
    assert first == again != other


def test_what_writes_no_text_has_no_samples(text):
    model = TinyLM.Config(vocab_size=300).build()
    assert sampler_of("", model, text, Environment()) is None
    assert sampler_of("so ", object(), text, Environment()) is None
    random = RandomTokens.Config(sequence_length=8, vocab_size=300).build()
    assert sampler_of("so ", model, random, Environment()) is None


def test_a_sample_that_fails_ends_samples_and_nothing_else(text, monkeypatch, caplog):
    model = TinyLM.Config(vocab_size=300).build()
    sampler = sampler_of("so ", model, text, Environment())
    calls = []

    def broken(self, *arguments, **named):
        calls.append(self)
        message = "RESOURCE_EXHAUSTED: no memory\nand more"
        raise RuntimeError(message)

    monkeypatch.setattr(Generator, "generate", broken)
    params = kn.initialize(model, jax.random.key(0))
    for _ in range(2):
        assert sampler.sample(params, {}) == {
            "prompt": "so ",
            "text": "",
            "error": "RuntimeError: RESOURCE_EXHAUSTED: no memory",
        }
    assert len(calls) == 1
    assert "no more samples" in caplog.text
