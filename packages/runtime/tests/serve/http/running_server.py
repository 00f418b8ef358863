"""A server in a thread of the test's process, on a free port of this machine."""

import contextlib
import threading
import time

import httpx2
from kanawa_runtime.data.chats.template import template_of
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.serve.http.access import Keys
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.lifecycle import HttpServer, listening_socket
from kanawa_runtime.serve.http.served_model import ServedModel
from kanawa_runtime.serve.structured.grammars import Grammars

from .scripted_engine import ScriptedEngine

BYTES = ByteTokenizer.Config().build()
#: What a machine that is busy with other tests may take for what is done at once; waiting ends when it is there.
PATIENCE = 60


class Server:
    """What a test sees of it: the engine behind it, its address, and a client."""

    def __init__(self, engine, url, server):
        self.engine, self.url, self.server = engine, url, server
        self.http = httpx2.Client(base_url=url, timeout=PATIENCE)

    def post(self, path, body, **options):
        return self.http.post(path, json=body, **options)

    def complete(self, **body):
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, status, path="/v1/completions", **body):
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    def ended(self, request_id, seconds=PATIENCE):
        """Returns how the engine ended a request, once it has."""
        return wait_for(lambda: self.engine.ended.get(request_id), seconds)


def wait_for(condition, seconds=PATIENCE):
    """Returns what `condition` returns once it is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
    return value


def model_of(engine, **options):
    options.setdefault("template", template_of({}))
    options.setdefault("grammars", Grammars(BYTES, 320))
    return ServedModel(name="scripted", engine=engine, tokenizer=options.pop("tokenizer", BYTES), **options)


@contextlib.contextmanager
def running_server(engine=None, *, keys=None, model=None, ready=True, **limits):
    """Runs a server until the block ends; the engine is scripted unless a model is given."""
    engine = engine or (model.engine if model else ScriptedEngine())
    model = model or model_of(engine)
    is_ready = threading.Event()
    listening = listening_socket("127.0.0.1", 0)
    server = HttpServer(model, ServerConfig(**limits), keys or Keys(), listening, is_ready.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        if ready:
            assert is_ready.wait(60)
        shown = Server(engine, f"http://127.0.0.1:{listening.getsockname()[1]}", server)
        shown.thread = thread
        with shown.http:
            yield shown
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()
