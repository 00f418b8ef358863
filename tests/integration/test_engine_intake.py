"""What an engine takes, and what it refuses: one request, several together, when it is full, and when it ends."""

import queue
import threading

import jax
import kanawa as kn
import pytest
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import (
    EngineStoppedError,
    QueueFullError,
    Request,
    RequestError,
    SamplingParams,
)

CONFIG = EngineConfig(
    max_sequences=1, max_length=32, page_size=8, prefill_tokens=8, max_queued=2, batch_sizes=(1,),
    prefill_sizes=(8,), prompt_logprobs=False, max_logprobs=0,
)  # fmt: skip
NAMES = ("decodes", "begins")
LONG = SamplingParams(max_tokens=20, temperature=0.0)


@pytest.fixture(scope="module")
def model():
    built = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=32, vocab_size=24).build()
    return built, kn.initialize(built, jax.random.key(0))


@pytest.fixture(scope="module")
def engine(model):
    built = LLMEngine(*model, config=CONFIG)
    built.start()
    yield built
    built.stop()
    built.check_pages()


class Listener:
    """Holds the engine at its first output until it is let go, and hears the rest."""

    def __init__(self):
        self.reached, self.go, self.outputs = threading.Event(), threading.Event(), queue.SimpleQueue()

    def __call__(self, output):
        self.reached.set()
        self.go.wait(60)
        self.outputs.put(output)

    def hear_ends(self, count):
        """Returns the ids of so many requests once they have ended."""
        self.go.set()
        ended = []
        while len(ended) < count:
            output = self.outputs.get(timeout=60)
            ended += [output.request_id] if output.finish_reason is not None else []
        return ended


def request(name, **changes):
    return Request(**{"id": name, "prompt_ids": (1, 2), "sampling": LONG, **changes})


def test_a_first_token_is_emitted_before_the_next_step_is_put_together(model):
    sizes = {"max_sequences": 2, "batch_sizes": (2,), "prompt_logprobs": False, "max_logprobs": 0}
    small = LLMEngine(*model, config=EngineConfig(max_length=32, page_size=8, prefill_sizes=(8,), **sizes))
    small._programs.compile()
    core, outputs = small._core, []
    core.add(request("decodes"), outputs.append)
    core.step()
    core.step()
    core.add(request("begins"), outputs.append)
    core.step()
    assert not [output for output in outputs if output.request_id == "begins"]
    jax.block_until_ready(core.programs.kv.last)
    core.wait_until_due()
    assert [len(output.token_ids) for output in outputs if output.request_id == "begins"] == [1]
    while not core.is_idle:
        core.step()
    gained = {name: [token for out in outputs if out.request_id == name for token in out.token_ids] for name in NAMES}
    assert gained["begins"] == gained["decodes"]
    small.check_pages()


def test_what_it_refuses_and_how_it_ends(model):
    small, listener = LLMEngine(*model, config=CONFIG), Listener()
    with pytest.raises(EngineStoppedError, match="the engine isn't running"):
        small.submit(request("a"), lambda _: None)
    small.start()
    small.submit(request("0"), listener)
    # While it is held there, nothing moves from what is submitted to what waits or runs.
    assert listener.reached.wait(60)
    for i in (1, 2):
        small.submit(request(str(i)), listener)
    with pytest.raises(QueueFullError, match="the queue is full: [23] requests wait, and it holds 2") as full:
        small.submit(request("3"), listener)
    assert full.value.retry_after > 0
    with pytest.raises(RequestError, match="a request with the id '0' is running already"):
        small.submit(request("0"), listener)
    listener.go.set()
    assert small.drain(60)
    with pytest.raises(QueueFullError, match="takes no new requests"):
        small.submit(request("x"), listener)
    small.stop()
    for refused in (lambda: small.submit(request("x"), listener), lambda: small.submit_together([], listener)):
        with pytest.raises(EngineStoppedError, match="the engine isn't running"):
            refused()


REFUSED_TOGETHER = {
    "a token beyond the vocabulary": (
        RequestError, "prompt_ids holds the token id 999", [request("a"), request("b", prompt_ids=(999,))],
    ),
    "one id twice": (
        RequestError, "the id 'a' is that of 2 requests; give each its own", [request("a"), request("a")],
    ),
    "an id that runs": (
        RequestError, "a request with the id 'runs' is running already", [request("a"), request("runs")],
    ),
    "more than the queue has room for": (
        QueueFullError, "the queue is full", [request("a"), request("b"), request("c")],
    ),
    "more than it could ever hold": (
        RequestError, r"4 requests are submitted together, and this engine holds 3: max_sequences \(1\) and "
        r"max_queued \(2\)", [request(name) for name in "abcd"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TOGETHER)
def test_what_comes_together_is_taken_whole_or_not_at_all(engine, case):
    error, told, group = REFUSED_TOGETHER[case]
    running, nobody, listener = Listener(), Listener(), Listener()
    engine.submit(request("runs"), running)
    assert running.reached.wait(60)
    with pytest.raises(error, match=told):
        engine.submit_together(group, nobody)
    assert running.hear_ends(1) == ["runs"]
    # Nothing is left of those before the one at fault: their ids are free, and nothing is told of them.
    engine.submit_together([request("a"), request("b")], listener)
    assert listener.hear_ends(2) == ["a", "b"]
    assert nobody.outputs.empty()


def test_none_together_is_no_request(engine):
    engine.submit_together([], lambda output: pytest.fail(f"told {output}"))
    assert engine.stats()["num_requests_waiting"] == 0


def test_the_hosts_seconds_only_grow_and_leave_out_what_the_device_takes(engine):
    # Somebody reads a counter at any time, also while a step's results are told.
    seen, ended = [], threading.Event()

    def look(output):
        seen.append(engine.stats()["engine_host_seconds"])
        if output.finish_reason is not None:
            ended.set()

    engine.submit(request("looks"), look)
    assert ended.wait(60)
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_a_list_of_prompts_is_generated_as_each_alone(model, engine):
    prompts = [(1, 2), (3, 4, 5), (6,)]
    samplings = [LONG, SamplingParams(max_tokens=5, seed=3), SamplingParams(max_tokens=1, temperature=0.0)]
    outputs = engine.generate(prompts, samplings)
    assert [(len(output.token_ids), output.finish_reason) for output in outputs] == [
        (20, "length"),
        (5, "length"),
        (1, "length"),
    ]
    alone = [engine.generate([prompt], sampling)[0] for prompt, sampling in zip(prompts, samplings, strict=True)]
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
    with pytest.raises(RequestError, match="4 requests are submitted together"):
        engine.generate([(1,)] * 4, LONG)
    with LLMEngine(*model, config=CONFIG) as other:
        assert other.generate(prompts[:1], LONG)[0].token_ids == outputs[0].token_ids
    with pytest.raises(EngineStoppedError, match="the engine isn't running"):
        other.generate(prompts[:1], LONG)
