"""Speculation changes no token: greedy or sampled, guessed by look-up or by a draft model, alone or in a batch."""

import jax
import kanawa as kn
import numpy as np
import pytest
from asking import ids_of, outputs_of
from kanawa.errors import ConfigError, UsageError
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.engine.speculation import Draft
from kanawa_runtime.serve.engine.speculator import NgramIndex

VOCAB = 50
SIZES = {
    "max_sequences": 4, "max_length": 64, "page_size": 4, "prefill_tokens": 16, "num_pages": 18,
    "max_batched_tokens": 32, "batch_sizes": (4,), "page_widths": (16,), "prefill_sizes": (8,), "prefill_rows": (4,),
    "max_logprobs": 2, "prompt_logprobs": False, "fused_steps": 2,
}  # fmt: skip


def made(seed, layers):
    cfg = llama(
        num_layers=layers, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=VOCAB, tied=True
    )
    model = cfg.build()
    return model, jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(seed))


def started(*args, **sizes):
    draft = sizes.pop("draft", None)
    engine = LLMEngine(*args, config=EngineConfig(**{**SIZES, **sizes}), draft=draft)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def model():
    return made(0, 2)


@pytest.fixture(scope="module")
def plain(model):
    engine = started(*model)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def drafts(model):
    """Returns a draft model that is often right: the model itself, its weights a little off."""
    built, params = model
    rng = np.random.default_rng(5)
    noisy = jax.tree.map(lambda x: x + 0.01 * rng.standard_normal(x.shape).astype(np.float32) * np.std(x), params)
    return Draft(built, noisy)


@pytest.fixture(scope="module", params=["ngram", "draft"])
def speculating(request, model, drafts):
    draft = drafts if request.param == "draft" else None
    engine = started(*model, speculative_tokens=3, ngram_min=1, draft=draft)
    yield engine
    engine.stop()
    engine.check_pages()


def answers(engine, requests):
    given = outputs_of(engine, requests)
    return {name: ids_of(outputs) for name, outputs in given.items()}, given


KINDS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.5, "top_k": 5},
    {"temperature": 0.0, "logprobs": 1},
    {"temperature": 1.3, "top_p": 0.7, "logprobs": 0},
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 0.7, "stop_token_ids": tuple(range(0, VOCAB, 6))},
]


def requests(count):
    rng = np.random.default_rng(2)
    shared = rng.integers(0, VOCAB, 18).tolist()
    return [
        Request(
            id=str(i),
            # Some share beginnings, and some repeat themselves.
            prompt_ids=tuple(shared[: 6 * (i % 4)] + rng.integers(0, VOCAB, 1 + i % 5).tolist() * (1 + i % 3)),
            sampling=SamplingParams(max_tokens=1 + 4 * (i % 6), seed=i, **KINDS[i % len(KINDS)]),
        )
        for i in range(count)
    ]


def test_every_token_is_the_one_without_speculation(plain, speculating):
    asked = requests(28)
    wanted, outputs_wanted = answers(plain, asked)
    got, outputs = answers(speculating, asked)
    assert got == wanted
    for request in asked:
        reasons = [each[request.id][-1] for each in (outputs_wanted, outputs)]
        assert len({(r.finish_reason, r.stop_token_id) for r in reasons}) == 1
        if request.sampling.logprobs is not None:
            own, theirs = ([p for o in each[request.id] for p in o.logprobs] for each in (outputs, outputs_wanted))
            np.testing.assert_allclose([p.logprob for p in own], [p.logprob for p in theirs], atol=1e-4)
            assert [[i for i, _ in p.top] for p in own] == [[i for i, _ in p.top] for p in theirs]
    stats = speculating.stats()
    assert stats["compilations"] == 0
    assert stats["num_preemptions"] > 0
    assert stats["prefix_cache_hits"] > 0
    assert stats["kv_cache_usage_perc"] == 0.0
    assert 0 < stats["spec_decode_num_accepted_tokens"] <= stats["spec_decode_num_draft_tokens"]
    assert stats["spec_decode_num_drafts"] <= stats["spec_decode_num_draft_tokens"]


def test_what_is_sampled_does_not_depend_on_the_batch(speculating):
    asked = [r for r in requests(14) if r.sampling.temperature]
    together, _ = answers(speculating, asked)
    for request in asked:
        alone, _ = answers(speculating, [request])
        assert alone[request.id] == together[request.id]


def test_a_draft_model_saves_steps(model, drafts, plain):
    """Of a draft that is right, K guesses and one more token come out of each step of the model."""
    engine = started(*model, speculative_tokens=3, draft=Draft(*model))
    try:
        asked = [Request(id="0", prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=17, temperature=0.8, seed=4))]
        before = engine.stats()["engine_steps"]
        got, _ = answers(engine, asked)
        stats = engine.stats()
        # The first token is the prompt's; then four a step.
        assert stats["engine_steps"] - before == 1 + 4
        assert stats["spec_decode_num_accepted_tokens"] == stats["spec_decode_num_draft_tokens"] == 12
        assert got == answers(plain, asked)[0]
    finally:
        engine.stop()


def test_look_up_finds_what_followed_the_longest_run():
    index = NgramIndex(2, 3)
    tokens = [1, 2, 3, 4, 9, 2, 3, 5]
    assert index.guess(tokens, 3) == []
    tokens += [1, 2, 3]
    # Of three tokens before of two, though the two were seen later.
    assert index.guess(tokens, 3) == [4, 9, 2]
    tokens += [4]
    assert index.guess(tokens, 2) == [9, 2]
    tokens += [7, 7, 7, 7]
    assert index.guess(tokens, 4) == [7]
    assert NgramIndex(1, 2).guess([5], 2) == []


def test_what_can_not_speculate_is_refused(model):
    config = EngineConfig(**{**SIZES, "prefill_rows": None}, speculative_tokens=2)
    recurrent = mamba2(num_layers=1, input_dim=32, vocab_size=VOCAB).build()
    params = jax.jit(lambda key: kn.initialize(recurrent, key))(jax.random.key(0))
    with pytest.raises(UsageError, match="can't speculate: some of its layers have a state.*speculative_tokens=0"):
        LLMEngine(recurrent, params, config=config)
    with pytest.raises(UsageError, match="the draft model has a state of the whole sequence"):
        LLMEngine(*model, config=config, draft=Draft(recurrent, params))
    other = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=16, vocab_size=40).build()
    with pytest.raises(UsageError, match="has 40 ids, and the model 50: both must have one vocabulary"):
        LLMEngine(*model, config=config, draft=Draft(other, None))
    with pytest.raises(UsageError, match="speculative_tokens is 0; set how many"):
        LLMEngine(*model, config=EngineConfig(**SIZES), draft=Draft(*model))
    with pytest.raises(ConfigError, match=r"max_batched_tokens \(32\) is less than 44"):
        EngineConfig(**SIZES, speculative_tokens=9).clone().freeze()
