"""A training service in a thread of the test's process, and a client of its protocol that waits for each answer."""

import contextlib
import time

import httpx2
import jax
import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.http.config import TrainingConfig
from kanawa_runtime.serve.http.from_run import served_model
from kanawa_runtime.serve.training import wire
from kanawa_runtime.serve.training.routes import training_routes
from served_in_thread import serving

#: Seconds to an answer, after which a test fails with the request's id instead of asking for ever.
_ANSWER_SECONDS = 240
KEYS = ("tml-first", "tml-second")
BYTES = ByteTokenizer.Config().build()
ENGINE = EngineConfig(
    max_sequences=4, max_length=64, page_size=4, prefill_tokens=16, num_pages=80, max_batched_tokens=32,
    batch_sizes=(4,), page_widths=(16,), prefill_sizes=(16,), prefill_rows=(1,), max_logprobs=2,
)  # fmt: skip
TRAINING = TrainingConfig(max_models=64, max_rank=4, max_samplers=2, tokens_at_once=64)


def recipe():
    """Returns a model of one row for each id of the tokenizer: all of them may be drawn."""
    rows = BYTES.vocab_size
    return llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=rows, tied=False)


def base_params():
    """Returns its parameters: random, with a head so large that adapters of the blocks may reach any answer."""
    params = flatten_paths(jax.jit(lambda key: kn.initialize(recipe().build(), key))(jax.random.key(0)))
    return {path: leaf * 3 if path.startswith("head.") else leaf for path, leaf in params.items()}


@contextlib.contextmanager
def running_service(folder, **limits):
    """Runs the service of a model of random weights; yields its address and the service."""
    RunStore().save(folder / "base", StoredModel(recipe(), base_params(), {}, BYTES.folder_files(), {}))
    training = TRAINING.clone().set(**limits)
    model = served_model(folder / "base", ENGINE, name="base", training=training)
    routes = training_routes(model, training, folder / "state")
    try:
        with serving(model, KEYS, routes.operations) as url:
            yield url, routes.training
    finally:
        routes.close()


def row(ids, **inputs):
    """Returns ids and what is learned of them, as a datum of the protocol has them: shifted, weights 1."""
    ids = np.asarray(ids)
    return ids[:-1], {"target_tokens": ids[1:], **(inputs or {"weights": np.ones(len(ids) - 1)})}


class Client:
    """One client of a service, whose connections `stack` closes."""

    def __init__(self, url, stack, key=KEYS[0]):
        http = httpx2.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": key}, timeout=120)
        self.http = stack.enter_context(http)
        self.session = self.post("create_session", tags=[], sdk_version="0")["session_id"]
        self.models = 0

    def send(self, route, body):
        return self.http.post(f"/{route}", json=body)

    def post(self, route, /, **body):
        answer = self.send(route, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def promised(self, route, /, **body):
        return self.answer(self.post(route, **body)["request_id"])

    def answer(self, request_id):
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            got = self.send("retrieve_future", {"request_id": request_id})
            assert got.status_code != 408 or time.monotonic() < until, f"{request_id} got no answer"
            if got.status_code != 408:
                assert got.status_code == 200, got.text
                return got.content if got.headers["content-type"] == wire.KIND else got.json()

    def model(self, rank=2, seed=1, **fields):
        config = {"rank": rank, "seed": seed, **fields}
        made = self.promised(
            "create_model", session_id=self.session, model_seq_id=self.models, base_model="base", lora_config=config
        )
        self.models += 1
        return Model(self, made["model_id"])


class Model:
    """One model in training."""

    def __init__(self, client, model_id):
        self.client, self.id, self.number = client, model_id, 0

    def next(self):
        self.number += 1
        return self.number

    def body(self, rows, loss="cross_entropy", options=None, *, forward_only=False, number=None):
        message = wire._class("ForwardBackwardRequest")()
        message.model_id, message.seq_id = self.id, self.next() if number is None else number
        message.loss_fn, message.forward_only = loss, forward_only
        for name, value in (options or {}).items():
            option = message.loss_fn_config.add()
            option.key, option.value = name, value
        for ids, inputs in rows:
            datum = message.data.add()
            datum.model_input.add().encoded_text.tokens = np.asarray(ids, np.int32).tobytes()
            for name, numbers in inputs.items():
                named = datum.loss_fn_inputs.add()
                kind = (2, np.int64) if name == "target_tokens" else (1, np.float32)
                named.key, named.value.dtype = name, kind[0]
                named.value.dense = np.asarray(numbers).astype(kind[1]).tobytes()
        return message.SerializeToString()

    def send(self, body):
        return self.client.http.post("/forward_backward", content=body, headers={"Content-Type": wire.KIND})

    def run(self, rows, loss="cross_entropy", options=None, *, forward_only=False):
        """Returns the loss's sum and each row's log-probabilities."""
        sent = self.send(self.body(rows, loss, options, forward_only=forward_only))
        assert sent.status_code == 200, sent.text
        return self.read(self.client.answer(sent.json()["request_id"]))

    def read(self, content):
        assert isinstance(content, bytes), content
        message = wire._class("ForwardBackwardOutput")()
        message.ParseFromString(content)
        (record,) = message.loss_fn_outputs
        field = next(f.value for f in record.fields if f.key == "logprobs")
        offsets = np.frombuffer(field.offsets, np.int64) // 4
        whole = np.frombuffer(field.data, np.float32)
        logprobs = [whole[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
        return {metric.key: metric.value for metric in message.metrics}["loss:sum"], logprobs

    def step(self, **numbers):
        return self.client.promised("optim_step", model_id=self.id, seq_id=self.next(), adam_params=numbers)
