"""Generation against a naive loop of full forwards, sampling against its definition, and prompts as ids."""

import itertools

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.contracts import Sequences
from kanawa.errors import UsageError
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.serve.engine.sequence import random_block
from kanawa_runtime.serve.generate import Generator, Sampling, SamplingConfig, sample
from kanawa_runtime.serve.growing_text import GrowingText, prompt_ids, text_after, visible
from tiny_lm import TinyLM

MODEL = TinyLM.Config().build()
PARAMS = kn.initialize(MODEL, jax.random.key(3))
GREEDY = SamplingConfig(temperature=0.0)


@pytest.fixture(scope="module")
def generator():
    return Generator(MODEL, PARAMS)


def naive(prompt, count):
    decode = kn.functional(MODEL, "decode")
    ids = list(prompt)
    for _ in range(count):
        caches = tuple(jnp.zeros((1, 1, 8)) for _ in range(2))
        (logits, _), _ = decode(PARAMS, {}, jnp.array([ids]), Sequences(), caches)
        ids.append(int(jnp.argmax(logits[0, -1])))
    return ids[len(prompt) :]


def test_greedy_equals_full_forwards():
    # The tiny model's cache is a running sum, which padding would enter: a prompt of exactly one padded block.
    prompt = np.random.default_rng(0).integers(0, 64, 64).tolist()
    assert Generator(MODEL, PARAMS).generate([prompt], 5, GREEDY)[0].token_ids == naive(prompt, 5)


@pytest.mark.parametrize("lengths", [(64, 64), (64, 30)])
def test_a_prompt_asks_for_no_logits_but_those_of_its_last_token(lengths):
    shapes = []

    class Seen(TinyLM):
        class Config(TinyLM.Config):
            pass

        def logits(self, x):
            shapes.append(x.shape[:2])
            return super().logits(x)

    seen = Generator(Seen.Config().build(), PARAMS)
    prompts = [list(range(length)) for length in lengths]
    answers = seen.generate(prompts, 2, GREEDY)
    assert set(shapes) == {(2, 1)}
    assert [answer.token_ids for answer in answers] == [
        answer.token_ids for answer in Generator(MODEL, PARAMS).generate(prompts, 2, GREEDY)
    ]


def test_a_stop_token_ends_a_row_and_is_not_returned(generator):
    prompt = list(range(64))
    free = generator.generate([prompt], 6, GREEDY)[0]
    assert free.finish_reason == "length"
    stop = free.token_ids[2]
    cut = generator.generate([prompt], 6, GREEDY, stop_ids=(stop,))[0]
    assert cut.finish_reason == "stop"
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop)]


def test_streaming_gives_the_same_tokens_one_by_one(generator):
    prompts, hot = [list(range(64)), list(range(30))], SamplingConfig(temperature=1.0, seed=5)
    stop = (generator.generate(prompts, 8, hot)[1].token_ids[4],)
    whole = generator.generate(prompts, 8, hot, stop)
    pieces = list(generator.stream(prompts, 8, hot, stop))
    assert pieces[-1] == whole
    assert len(pieces) <= 8
    for before, after in itertools.pairwise(pieces):
        for old, new in zip(before, after, strict=True):
            assert new.token_ids[: len(old.token_ids)] == old.token_ids
    assert [len(piece[0].token_ids) for piece in pieces[:3]] == [1, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_padded_ids_are_never_drawn(temperature):
    # The model's 64 ids padded from a tokenizer's 10, with a hole at 3: what is likeliest is mostly not allowed.
    known = np.arange(10) != 3
    padded = Generator(MODEL, PARAMS, known=known)
    hot = SamplingConfig(temperature=temperature, seed=1)
    ids = padded.generate([list(range(64))], 40, hot)[0].token_ids
    assert set(ids) <= set(np.flatnonzero(known).tolist())
    assert not set(Generator(MODEL, PARAMS).generate([list(range(64))], 40, hot)[0].token_ids) <= set(range(10))


def test_the_same_seed_gives_the_same_text_and_another_seed_another(generator):
    prompt, hot = list(range(64)), {"temperature": 1.5}
    first, again, other = (
        generator.generate([prompt], 20, SamplingConfig(**hot, seed=seed))[0].token_ids for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_row_does_not_depend_on_its_batch_mates(generator):
    prompts = [list(range(64)), list(range(64))[::-1]]
    hot = SamplingConfig(temperature=1.0, seed=5)
    assert generator.generate(prompts, 8, hot)[0] == generator.generate(prompts[:1], 8, hot)[0]


def test_empty_prompts_are_refused(generator):
    with pytest.raises(UsageError, match="at least one token a prompt"):
        generator.generate([[]], 4)


LOGITS = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))


def drawn(sampling, count=400):
    uniforms = jnp.asarray(np.concatenate([random_block(0, block) for block in range(-(-count // 64))])[:count])
    ids, logprobs = sample(jnp.repeat(LOGITS, count, 0), sampling, uniforms)
    np.testing.assert_allclose(logprobs, LOGITS[0][ids], rtol=1e-5)
    return set(ids.tolist())


def test_top_k_and_top_p_cut_the_tail():
    assert drawn(Sampling(1.0)) == {0, 1, 2, 3}
    assert drawn(Sampling(1.0, top_k=2)) == {0, 1}
    assert drawn(Sampling(1.0, top_p=0.7)) == {0, 1}
    assert drawn(Sampling(1.0, top_p=0.4)) == {0}
    assert drawn(Sampling(0.0)) == {0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"temperature": -1.0}, "temperature: expected"), ({"top_p": 1.5}, "top_p: expected"), ({"top_k": 0}, "got 0")],
)
def test_ranges(fields, message):
    with pytest.raises(UsageError, match=message):
        SamplingConfig(**fields).freeze()


def test_a_prompt_is_tokenized_as_it_is():
    documents = [b"def name(x):\n    return name\n" * 50]
    tokenizer = BytePairTokenizer.Config(vocab_size=300, min_piece_count=1).build().fit(documents)
    for text in ("def", "def ", "def  "):
        assert prompt_ids(tokenizer, text) == [*tokenizer.prefix_ids, *tokenizer.encode(text).tolist()]
    assert prompt_ids(tokenizer, "") == [tokenizer.bos_id]


def test_a_text_grows_by_whole_characters():
    documents = ["def name(x): ü 漢字 🎉\n".encode() * 50]
    tokenizer = BytePairTokenizer.Config(vocab_size=300, min_piece_count=1).build().fit(documents)
    prompt, ids = prompt_ids(tokenizer, "def"), tokenizer.encode(" ü 漢字 🎉").tolist()
    growing = GrowingText(tokenizer, prompt)
    pieces = [growing.push(i) for i in ids]
    assert "".join(pieces) == " ü 漢字 🎉" == text_after(tokenizer, prompt, ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert text_after(tokenizer, prompt, [*ids, 0xE6]) == " ü 漢字 🎉\ufffd"


def test_a_terminal_is_shown_no_control_characters():
    assert visible("a\tb\nc\x1b[2Jd\0\x7f\x9bé") == "a\tb\nc\u241b[2Jd\u2400\u2421\ufffdé"
