"""A replica of Ray Serve, made as Ray makes it but without Ray: it has the application of `kanawa serve`."""

import asyncio

import httpx2
import pytest
from kanawa_runtime import process
from kanawa_runtime.launch.ray.serving import Forward, Server
from kanawa_runtime.serve.http import from_run

from .running_server import model_of
from .scripted_engine import ScriptedEngine


async def asked(monkeypatch, host):
    """Returns the engine, and what a replica says to a client, to one that asks for another host, and to Ray."""
    engine = ScriptedEngine()
    monkeypatch.setattr(process, "prepare_process", lambda **_: None)
    monkeypatch.setattr(from_run, "served_model", lambda directory, config, target: model_of(engine))
    replica = Server.__new__(Server)
    await replica.__init__("runs/a", None, ["server.max_n=2"], host)
    transport = httpx2.ASGITransport(app=Forward())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        body = {"model": "scripted", "prompt": "a", "max_tokens": 2}
        answer = await client.post("/v1/completions", json=body)
        too_many = await client.post("/v1/completions", json={**body, "n": 3})
        elsewhere = await client.get("/v1/models", headers={"Host": "other.example"})
    replica.check_health()
    engine.stop()
    with pytest.raises(RuntimeError, match="the engine has failed"):
        replica.check_health()
    return answer.status_code, too_many.status_code, elsewhere.status_code


@pytest.mark.parametrize(("host", "elsewhere"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
def test_a_replica_answers_as_a_server_of_its_address(monkeypatch, host, elsewhere):
    assert asyncio.run(asked(monkeypatch, host)) == (200, 400, elsewhere)
