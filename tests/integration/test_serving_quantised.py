"""Weights kept in 8 and 4 bits through the engine: the tokens that the same model gives one prompt at a time."""

import jax
import kanawa as kn
import numpy as np
import pytest
from asking import ids_of, outputs_of
from kanawa.composition.plain import from_plain
from kanawa_layers.modifiers.weights import WeightOnlyModifier
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams
from kanawa_runtime.serve.generate import Generator, SamplingConfig

CONFIG = EngineConfig(
    max_sequences=4, max_length=64, page_size=4, prefill_tokens=16, num_pages=40, max_batched_tokens=32,
    batch_sizes=(4,), page_widths=(16,), prefill_sizes=(16,), max_logprobs=0, prompt_logprobs=False,
    speculative_tokens=2, ngram_min=1,
)  # fmt: skip


def recipe():
    return llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=64, vocab_size=50)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_weights_give_the_tokens_of_one_at_a_time(bits):
    plain, module = recipe().build(), WeightOnlyModifier.Config(bits=bits).build()(recipe()).build()

    def made(key):
        return from_plain(module, kn.initialize(plain, key), key)

    params = jax.jit(made)(jax.random.key(0))
    assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(params)} == {1, 4}
    engine = LLMEngine(module, params, config=CONFIG)
    engine.start()
    try:
        rng = np.random.default_rng(0)
        prompts = [tuple(rng.integers(0, 50, 3 + 4 * i).tolist()) for i in range(6)]
        sampling = SamplingParams(max_tokens=9, temperature=0.0)
        requests = [Request(id=str(i), prompt_ids=prompt, sampling=sampling) for i, prompt in enumerate(prompts)]
        ids = [ids_of(outputs) for outputs in outputs_of(engine, requests).values()]
    finally:
        engine.stop()
    alone = Generator(module, params)
    wanted = [alone.generate([prompt], 9, SamplingConfig(temperature=0.0))[0].token_ids for prompt in prompts]
    assert ids == wanted
    assert engine.stats()["compilations"] == 0
