"""Numbers that aren't finite in one request: it ends with an error, and nobody else gets a different token."""

import queue
import threading

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan
from kanawa.arrays.precision import Precision
from kanawa.contracts import Environment
from kanawa_layers.recipes.deepseek_v3 import deepseek_v3
from kanawa_layers.recipes.gemma3 import gemma3
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_layers.recipes.recurrent_gemma import recurrent_gemma
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, SamplingParams

VOCAB, EVIL = 64, 63
WIDE = {"input_dim": 32, "num_heads": 4, "vocab_size": VOCAB}
HEADS = {**WIDE, "num_kv_heads": 2, "hidden_dim": 48}
MODELS = {
    "llama": lambda: llama(num_layers=2, **HEADS),
    "gemma3": lambda: gemma3(
        num_layers=2, **HEADS, head_dim=8, window=6, kinds=("sliding_attention", "full_attention")
    ),
    "deepseek-v3": lambda: deepseek_v3(
        num_layers=2, num_dense_layers=1, **WIDE, hidden_dim=48, query_rank=12, kv_rank=8, nope_dim=6, rope_dim=4,
        value_dim=8, num_experts=4, top_k=2, expert_dim=16, num_groups=2, top_groups=1,
    ),
    "mixtral": lambda: mixtral(num_layers=2, **HEADS, num_experts=4, top_k=2),
    "recurrent-gemma": lambda: recurrent_gemma(num_layers=3, **{**HEADS, "num_kv_heads": 1}, window=6),
}  # fmt: skip


def serve(kind, compute="float32", **changes):
    """Returns an engine whose model makes NaN of one token, with pages for little more than one row."""
    environment = Environment(ExecutionPlan(precision=Precision(compute=compute)))
    model = MODELS[kind]().build()
    params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(1))
    table = np.array(params["embedding"]["weight"]) * 20
    table[EVIL] = np.nan
    params = {**params, "embedding": {**params["embedding"], "weight": jax.numpy.asarray(table)}}
    known = np.arange(VOCAB) != EVIL
    config = EngineConfig(
        max_sequences=4, max_length=48, page_size=4, prefill_tokens=16, num_pages=30, batch_sizes=(4,),
        prefill_sizes=(16,), page_widths=(12,), max_logprobs=0, prompt_logprobs=False,
        **{"max_batched_tokens": 24, **changes},
    )  # fmt: skip
    state = kn.initial_state(model, jax.random.key(0))
    engine = LLMEngine(model, params, state, environment, config, known)
    engine.start()
    return engine


def answers(engine, requests):
    """Returns the tokens of each request, or what was wrong with it."""
    outputs, told, left = queue.SimpleQueue(), {}, len(requests)
    for request in requests:
        engine.submit(request, outputs.put)
    while left:
        output = outputs.get(timeout=120)
        told.setdefault(output.request_id, []).extend(output.token_ids)
        if output.finish_reason is not None:
            left -= 1
            if output.finish_reason == "error":
                told[output.request_id] = output.error
    return told


def good(count=10):
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, EVIL, int(rng.integers(1, 30))).tolist()) for _ in range(count)]
    warm = [SamplingParams(max_tokens=8, temperature=float(i % 3 == 2), seed=i) for i in range(count)]
    both = enumerate(zip(prompts, warm, strict=True))
    return [Request(id=f"good {i}", prompt_ids=prompt, sampling=sampling) for i, (prompt, sampling) in both]


def evil(count=10):
    """Prompts with the token in all places; the last page of some is full of it."""
    rng = np.random.default_rng(1)
    requests = []
    for i in range(count):
        prompt = rng.integers(0, EVIL, int(rng.integers(2, 30)))
        prompt[rng.integers(0, len(prompt)) :] = EVIL
        sampling = SamplingParams(max_tokens=8, temperature=float(i % 2), seed=i)
        requests.append(Request(id=f"evil {i}", prompt_ids=tuple(prompt.tolist()), sampling=sampling))
    return requests


CASES = [
    ("llama", {}),
    pytest.param("llama", {"int8_cache": True}, marks=pytest.mark.nightly),
    ("llama", {"compute": "bfloat16", "speculative_tokens": 3, "max_batched_tokens": 40}),
    pytest.param("gemma3", {}, marks=pytest.mark.nightly),
    ("deepseek-v3", {}),
    pytest.param("mixtral", {"fused_steps": 1}, marks=pytest.mark.nightly),
    ("recurrent-gemma", {}),
]


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=str)
def test_what_is_not_finite_in_one_request_reaches_no_other(kind, changes):
    engine = serve(kind, **changes)
    try:
        wanted = answers(engine, good())
        assert all(isinstance(ids, list) and len(ids) == 8 for ids in wanted.values())
        # Beside each other in a batch, and one after the other in the same pages.
        mixed = [one for pair in zip(evil(), good(), strict=True) for one in pair]
        told = answers(engine, mixed)
        assert {name: told[name] for name in wanted} == wanted
        for name in told.keys() - wanted.keys():
            assert "numbers are no longer finite" in str(told[name]), (name, told[name])
        assert answers(engine, good()) == wanted
    finally:
        engine.stop()
    engine.check_pages()


@pytest.fixture(scope="module")
def engine():
    built = serve("llama")
    yield built
    built.stop()
    built.check_pages()


class OnceOnly(tuple):
    """Stop tokens that can be read while a request is checked, and never again."""

    reads = 0

    def __iter__(self):
        OnceOnly.reads += 1
        if threading.current_thread().name == "kanawa-engine":
            message = "read on the engine's thread"
            raise RuntimeError(message)
        return super().__iter__()


def test_a_request_that_cannot_be_taken_is_told_so_and_leaves_nothing(engine):
    request = Request(id="odd", prompt_ids=(1, 2, 3), sampling=SamplingParams(stop_token_ids=OnceOnly((5,))))
    for _ in range(2):
        # The same id again: nothing of the first one is left.
        told = answers(engine, [request, good(1)[0]])
        assert told["odd"] == "the request couldn't be admitted: read on the engine's thread"
        assert len(told["good 0"]) == 8
    stats = engine.stats()
    assert (stats["kv_cache_usage_perc"], stats["num_requests_running"], stats["num_requests_waiting"]) == (0, 0, 0)


class Broken:
    """A stranger's grammar with a defect in one of its methods."""

    def __init__(self, where):
        self.where = where

    def allowed(self):
        if self.where == "allowed":
            raise ZeroDivisionError
        return np.full(1, -1, np.int32) if self.where == "short" else np.full(2, -1, np.int32)

    def accept(self, token_id):
        raise ZeroDivisionError

    def fork(self):
        return self


@pytest.mark.parametrize("where", ["allowed", "accept"])
def test_a_strangers_grammar_that_raises_ends_its_own_request(engine, where):
    request = Request(id="odd", prompt_ids=(1, 2, 3), sampling=SamplingParams(grammar=Broken(where)))
    told = answers(engine, [request, good(1)[0]])
    assert told["odd"].startswith("the grammar failed (ZeroDivisionError")
    assert len(told["good 0"]) == 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "asked",
    [
        {"allowed_token_ids": (3, 4), "bad_words": ((3,), (4,))},
        {"allowed_token_ids": (3,), "stop_token_ids": (3,), "min_tokens": 3},
        {"allowed_token_ids": (3,), "bad_words": ((1, 3), (3, 3))},
        {"allowed_token_ids": (EVIL,)},
    ],
    ids=str,
)
def test_a_row_that_may_give_no_token_ends_with_an_error_that_says_so(engine, temperature, asked):
    sampling = SamplingParams(max_tokens=4, temperature=temperature, **asked)
    told = answers(engine, [Request(id="none", prompt_ids=(2, 1), sampling=sampling), good(1)[0]])
    assert str(told["none"]).startswith("no token may follow: "), told
    assert len(told["good 0"]) == 8
