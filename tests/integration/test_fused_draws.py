"""Tokens that are drawn where they are decoded, several in a call, against those drawn one at a time."""

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import RequestError, SamplingParams

SIZES = {
    "max_sequences": 4, "max_length": 64, "page_size": 8, "prefill_tokens": 16, "max_logprobs": 0,
    "prompt_logprobs": False, "batch_sizes": (4,), "page_widths": (8,), "prefill_sizes": (16,), "prefill_rows": (1,),
}  # fmt: skip
#: More than there are slots; some of a length that is no multiple of a call's tokens.
PROMPTS = [tuple((7 * row + place) % 31 for place in range(3 + row)) for row in range(7)]


@pytest.mark.parametrize("noisy", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_draws_of_several_steps_are_those_of_one_at_a_time(noisy):
    built = llama(num_layers=2, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=32, vocab_size=32).build()
    params = kn.initialize(built, jax.random.key(0))
    samplings = [
        SamplingParams(
            max_tokens=5 + 4 * row, seed=row, stop_token_ids=(row, 11) if row % 2 else (),
            logprobs=None if row == 3 else 0, temperature=0.0 if row == 2 else 1.0,
        )
        for row in range(len(PROMPTS))
    ]  # fmt: skip
    both, counts = [], []
    for sizes in ({}, {"draws_only": True, "fused_steps": 8}):
        config = EngineConfig(**SIZES, noisy_draws=noisy, **sizes)
        with LLMEngine(built, params, None, None, config) as engine:
            before = engine.stats()["engine_steps"]
            outputs = [engine.generate(PROMPTS, samplings), engine.generate(PROMPTS[:3], samplings[:3])]
            both.append(outputs)
            steps, pages = engine.stats()["engine_steps"] - before, engine.stats()["kv_cache_usage_perc"]
            assert pages == 0
            engine.check_pages()
            if sizes:
                with pytest.raises(RequestError, match="draws by temperature alone"):
                    engine.generate(PROMPTS[:1], SamplingParams(top_k=3))
            counts.append(steps)
    # A call takes tokens of several steps.
    assert counts[1] < counts[0] / 2
    reasons = set()
    for alone, fused in zip(*([o for part in outputs for o in part] for outputs in both), strict=True):
        assert fused.token_ids == alone.token_ids
        assert (fused.finish_reason, fused.stop_token_id) == (alone.finish_reason, alone.stop_token_id)
        reasons.add(fused.finish_reason)
        for one, other in ((fused.logprobs, alone.logprobs), ([fused.stop_logprob], [alone.stop_logprob])):
            values = [[None if x is None else x.logprob for x in each or ()] for each in (one, other)]
            assert len(values[0]) == len(values[1])
            np.testing.assert_allclose(*([np.nan if x is None else x for x in each] for each in values), rtol=1e-5)
    assert reasons == {"stop", "length"}


def test_guesses_and_draws_in_one_call_exclude_each_other():
    with pytest.raises(ConfigError, match="draws_only is set, and speculative_tokens is 2"):
        EngineConfig(draws_only=True, speculative_tokens=2).freeze()
