"""Two replicas of a server behind Ray Serve, on a real Ray cluster of two nodes (`nox -s ray`)."""

import importlib.util
import json
import os
import pathlib
import socket
import threading
import time
import urllib.error
import urllib.request

import jax
import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.ray.serve_launcher import RayServeLauncher
from kanawa_runtime.runs.model_store import RunStore
from xla_options import xla_flags

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray isn't installed; `nox -s ray` has it"),
    # Ray's own, of what it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TEXT = [path.read_bytes() for path in sorted(pathlib.Path(json.__file__).parent.glob("*.py"))]
SIZES = (
    "max_length=128",
    "max_sequences=4",
    "prefill_tokens=32",
    "prefill_sizes=[32]",
    "batch_sizes=[4]",
    "page_widths=[8]",
)
SECONDS = 900
CLIENTS = 4


@pytest.fixture
def run(tmp_path):
    """A run of two layers that has learned nothing."""
    tokenizer = BytePairTokenizer.Config(vocab_size=384, min_piece_count=2).build().fit(TEXT)
    config = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=384, tied=True)
    model = config.build()
    params = flatten_paths(jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0)))
    folder = tmp_path / "small"
    RunStore().save(folder, StoredModel(config, params, {}, tokenizer.folder_files(), {}))
    return folder


@pytest.fixture
def address(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("XLA_FLAGS", xla_flags())
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # Five seconds by default, in which a busy machine starts no process.
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(SECONDS))
    monkeypatch.setenv("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", str(SECONDS))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    import ray

    ray.shutdown()
    cluster.shutdown()


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read())


class Clients:
    """Clients that ask one request after the other while the block lasts; `texts` are the answers they got."""

    def __init__(self, url, body):
        self.url, self.body, self.texts, self.refusals = url, body, [], []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self):
        while not self._over.is_set():
            try:
                self.texts.append(ask(self.url, "/v1/completions", self.body)["choices"][0]["text"])
            except (OSError, urllib.error.HTTPError) as error:
                self.refusals.append(str(error))

    def wait_for(self, count):
        """Returns once so many more were answered."""
        wanted, deadline = len(self.texts) + count, time.monotonic() + SECONDS
        while len(self.texts) < wanted:
            assert time.monotonic() < deadline, (self.texts, self.refusals)
            time.sleep(0.05)


@pytest.mark.timeout(2 * SECONDS)
def test_two_replicas_answer_and_one_that_dies_is_replaced(address, run, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    adapter = RayServeLauncher.Config(address=address, port=port).build()
    words = [word for text in SIZES for word in ("--set", f"engine.{text}")]
    job = Job(name="small", command=["kanawa", "serve", str(run), *words], run=str(run), is_gang=False, replicas=2)
    adapter.check(job)
    for name, text in adapter.render(job).items():
        (tmp_path / name).write_text(text)
    assert adapter.submit(job, tmp_path) == "small"
    assert adapter.status("small").line() == "running, 2 running"
    url = f"http://127.0.0.1:{port}"
    assert ask(url, "/v1/models")["data"][0]["id"] == "small"
    body = {"model": "small", "prompt": "def ", "max_tokens": 8, "temperature": 0}
    answers = {ask(url, "/v1/completions", body)["choices"][0]["text"] for _ in range(8)}
    assert len(answers) == 1, "both replicas have the same weights"
    with Clients(url, body) as clients:
        clients.wait_for(8)
        _kill_one_replica()
        # The other one goes on at once; what the dead one had is lost, and its clients are told.
        clients.wait_for(24)
        deadline = time.monotonic() + SECONDS
        while adapter.status("small").detail != "2 running" or len(_replicas()) < 2:
            assert time.monotonic() < deadline, adapter.status("small")
            time.sleep(0.5)
        clients.wait_for(8)
    assert set(clients.texts) == answers
    assert len(clients.refusals) <= CLIENTS, clients.refusals
    adapter.cancel("small")
    assert not _replicas()


def _replicas():
    """Returns the processes of the replicas on this machine, which is both nodes."""
    titles = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                titles[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
    return [pid for pid, title in titles.items() if title.startswith("ray::ServeReplica:small")]


def _kill_one_replica():
    before = _replicas()
    assert len(before) == 2
    os.kill(before[0], 9)
    deadline = time.monotonic() + SECONDS
    while before[0] in _replicas():
        assert time.monotonic() < deadline
        time.sleep(0.05)
