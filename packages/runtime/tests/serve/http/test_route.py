"""Routes of another distribution: keys, limits, errors, metrics and the document reach them."""

import pytest
from kanawa.errors import UsageError
from kanawa.plugins import PluginHost, set_host
from kanawa.plugins.discovery import Entry, Provider, discover
from kanawa_runtime.serve.http.access import Keys
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.lifecycle import HttpServer, listening_socket

from .running_server import model_of, running_server
from .scripted_engine import ScriptedEngine

ECHO = """
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.route import TAKES, Operation
from kanawa_runtime.serve.http.validation import Fields


class EchoRequest(Fields):
    text: str


def routes(service):
    async def answer(exchange):
        request = await service.read_request(EchoRequest, exchange, is_queued=True)
        if request.text == "crash":
            raise RuntimeError("crashed")
        await exchange.answer({"echo": request.text})

    yield Operation("POST", "/echo", "Echo a text", answer, "api", EchoRequest, refuses=TAKES)


def clash(service):
    yield Operation("GET", "/version", "Another version", None)


def broken(service):
    raise RuntimeError("no such file")
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Returns a function that installs a distribution with these entry points; the host is reset after the test."""
    (tmp_path / "strangers_routes.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)

    def install(*names):
        entries = tuple(Entry(kind="routes", name=n, value=f"strangers_routes:{n}") for n in names)
        found = [*discover(), Provider(name="kanawa-stranger", version="1.0", entries=entries)]
        return set_host(PluginHost(discover=lambda: found))

    old = install()
    yield install
    set_host(old)


def test_a_strangers_route_has_what_every_route_has(stranger, caplog):
    stranger("routes", "broken")
    with running_server(keys=Keys(("secret",)), max_body_bytes=1000) as server:
        key = {"Authorization": "Bearer secret"}

        def asked(**options):
            answer = server.http.post("/echo", **options)
            return answer.status_code, answer.json()

        assert asked(json={"text": "a"}, headers=key) == (200, {"echo": "a"})
        assert asked(json={"text": "a"})[0] == 401
        status, refused = asked(json={"txt": "a"}, headers=key)
        assert (status, refused["error"]["param"]) == (400, "txt")
        assert asked(json={"text": "a" * 2000}, headers=key)[0] == 413
        assert asked(content="text=a", headers=key)[0] == 415
        assert asked(json={"text": "crash"}, headers=key)[0] == 500
        wrong = server.http.get("/echo", headers=key)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        described = server.http.get("/openapi.json").json()["paths"]["/echo"]["post"]
        assert (described["summary"], described["security"]) == ("Echo a text", [{"key": []}])
        assert 'kanawa:http_responses_total{path="/echo",status="413"} 1.0' in server.http.get("/metrics").text
    # One file that raises stops no server.
    assert "broken failed: RuntimeError: no such file" in caplog.text


def test_two_answers_to_one_route_are_refused(stranger):
    stranger("clash")
    with listening_socket("127.0.0.1", 0) as listening:
        server = HttpServer(model_of(ScriptedEngine()), ServerConfig(), Keys(), listening)
        with pytest.raises(UsageError, match="both answer GET /version; leave one out: KANAWA_SKIP_PLUGINS="):
            server.run()
