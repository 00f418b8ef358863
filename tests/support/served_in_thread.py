"""A server of one model in a thread of the test's process."""

import contextlib
import threading

from kanawa_runtime.serve.http.access import Keys
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.lifecycle import HttpServer, listening_socket


@contextlib.contextmanager
def serving(model, keys=(), more=None, **limits):
    """Serves a model, and `more` routes beside its own, with fields of the server's config; yields its address."""
    ready, listening = threading.Event(), listening_socket("127.0.0.1", 0)
    server = HttpServer(model, ServerConfig(**limits), Keys(keys), listening, ready.set, more)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(300)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(60)
    assert not thread.is_alive()
