"""The serving engine against one-at-a-time decoding, token by token."""

import queue

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.generate import Generator
from kanawa_runtime.serve.sampling import SamplingConfig

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def model():
    cfg = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=50, tied=True)
    built = cfg.build()
    return built, jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))


@pytest.fixture(scope="module")
def engine(model):
    config = EngineConfig(
        max_sequences=4, max_length=64, page_size=4, prefill_tokens=16, num_pages=26, max_batched_tokens=32,
        batch_sizes=(4,), page_widths=(16,), prefill_sizes=(16,), max_logprobs=3,
    )  # fmt: skip
    built = LLMEngine(*model, config=config)
    built.start()
    yield built
    built.stop()
    built.check_pages()


def answers(engine, requests):
    """Returns the ids and the last output of each request."""
    outputs = queue.SimpleQueue()
    for request in requests:
        engine.submit(request, outputs.put)
    ids, last = {request.id: [] for request in requests}, {}
    while len(last) < len(requests):
        output = outputs.get(timeout=60)
        ids[output.request_id] += output.token_ids
        if output.finish_reason is not None:
            last[output.request_id] = output
    return ids, last


def test_greedy_tokens_are_those_of_one_at_a_time(engine, model):
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 50, 20).tolist()
    prompts = [tuple(shared[: 4 * (i % 6)] + rng.integers(0, 50, 1 + i).tolist()) for i in range(24)]
    requests = [Request(id=str(i), prompt_ids=prompt, sampling=GREEDY) for i, prompt in enumerate(prompts)]
    ids, last = answers(engine, requests)
    alone = Generator(*model)
    for request in requests:
        (wanted,) = alone.generate([request.prompt_ids], 12, SamplingConfig(temperature=0.0))
        assert ids[request.id] == wanted.token_ids
    assert {output.finish_reason for output in last.values()} == {"length"}
    stats = engine.stats()
    assert stats["compilations"] == 0
    assert stats["prefix_cache_hits"] > 0
    assert stats["num_preemptions"] > 0
    assert stats["kv_cache_usage_perc"] == 0.0


def one(engine, **sampling):
    prompt = (3, 1, 4, 1, 5, 9, 2, 6)
    request = Request(id="one", prompt_ids=prompt, sampling=SamplingParams(**{"max_tokens": 8, **sampling}))
    ids, last = answers(engine, [request])
    return ids["one"], last["one"]


def test_sampling_does_not_depend_on_the_batch(engine):
    rng = np.random.default_rng(1)
    kinds = [{"temperature": 1.0}, {"top_k": 5}, {"top_p": 0.6, "temperature": 1.5}, {"min_p": 0.02}]
    kinds += [{"presence_penalty": 1.0}, {"repetition_penalty": 1.7}, {"logit_bias": {7: 3.0}}, {"temperature": 0.0}]
    requests = [
        Request(
            id=str(i),
            prompt_ids=tuple(rng.integers(0, 50, 1 + i % 9).tolist()),
            sampling=SamplingParams(max_tokens=12, seed=i, **kinds[i % len(kinds)]),
        )
        for i in range(16)
    ]
    together, _ = answers(engine, requests)
    for request in requests:
        alone, _ = answers(engine, [request])
        assert alone[request.id] == together[request.id]
    assert len({tuple(ids) for ids in together.values()}) == 16
    assert engine.stats()["compilations"] == 0


def test_stop_tokens_and_the_least_number_of_tokens(engine):
    free, _ = one(engine, temperature=0.0)
    stop = free[3]
    ids, last = one(engine, temperature=0.0, stop_token_ids=(stop,))
    assert ids == free[: free.index(stop)]
    assert (last.finish_reason, last.stop_token_id) == ("stop", stop)
    ids, _ = one(engine, temperature=0.0, stop_token_ids=(stop,), min_tokens=8)
    assert len(ids) == 8
    assert stop not in ids


def test_what_may_be_drawn(engine):
    free, _ = one(engine, temperature=0.0)
    assert set(one(engine, seed=1, allowed_token_ids=(5, 6))[0]) <= {5, 6}
    assert one(engine, temperature=0.0, logit_bias={9: 100.0})[0] == [9] * 8
    assert free[0] not in one(engine, temperature=0.0, bad_words=((free[0],),))[0]
    pair = tuple(free[1:3])
    ids, _ = one(engine, temperature=0.0, bad_words=(pair,))
    assert ids[:2] == free[:2]
    assert pair not in zip(ids, ids[1:], strict=False)


def test_log_probabilities_are_those_of_whole_rows(engine, model):
    built, params = model
    ids, last = one(engine, temperature=0.0, logprobs=2, prompt_logprobs=1, max_tokens=1)
    row = np.asarray([3, 1, 4, 1, 5, 9, 2, 6])
    logits = np.asarray(kn.functional(built, "predict")(params, {}, row[None])[0][0])
    wanted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    best = np.argsort(-wanted, axis=1)
    (new,) = last.logprobs
    assert (new.rank, [token for token, _ in new.top]) == (1, best[-1][:2].tolist())
    np.testing.assert_allclose([new.logprob, new.top[1][1]], wanted[-1][best[-1][:2]], atol=1e-5)
    assert ids == [best[-1][0]]
    first, *told = last.prompt_logprobs
    assert first is None
    np.testing.assert_allclose([each.logprob for each in told], wanted[np.arange(7), row[1:]], atol=1e-5)
    assert [each.top[0][0] for each in told] == best[:7, 0].tolist()
    assert [each.rank for each in told] == [int(np.flatnonzero(best[i] == row[i + 1])[0]) + 1 for i in range(7)]
