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
