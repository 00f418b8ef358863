"""What operators see: models, phases, keys, metrics, other weights, and the document."""

import time
import types

import pytest
from kanawa.errors import UsageError
from kanawa_runtime._version import __version__
from kanawa_runtime.serve.http.access import Keys, keys_from
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.lifecycle import HttpServer, listening_socket
from kanawa_runtime.serve.http.served_model import generation_defaults
from prometheus_client.parser import text_string_to_metric_families

from .running_server import PATIENCE, model_of, running_server, wait_for
from .scripted_engine import ScriptedEngine


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_models(server):
    listed = server.http.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["max_model_len"], card["chat_template"]) == ("scripted", 512, "plain")
    assert server.http.get("/v1/models/scripted").json() == card


def test_version_and_phases(server):
    assert server.http.get("/version").json() == {"version": __version__}
    assert server.http.get("/health").json() == {"status": "ready"}
    assert server.http.get("/ready").status_code == 200


def test_tokens_there_and_back(server):
    told = server.post("/tokenize", {"prompt": "aé"}).json()
    assert told == {"count": 4, "max_model_len": 512, "tokens": [257, 97, 195, 169]}
    assert server.post("/tokenize", {"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]
    assert server.post("/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": "aé"}
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}], "return_token_strs": True}).json()
    assert chat["tokens"] == [257, 97, 10]
    assert chat["token_strs"][1:] == ["a", "\n"]
    assert server.refused(400, "/tokenize")["message"] == "prompt: give a prompt or messages, one of them"
    assert server.refused(400, "/detokenize", tokens=[320])["param"] == "tokens[0]"


def test_what_lm_eval_asks_of_a_tokenizer(server):
    told = server.http.get("/tokenizer_info").json()
    assert (told["eos_token"], told["bos_token"]) == ("<|kanawa-end|>", "<|kanawa-begin|>")
    assert told["model_max_length"] == 512


def numbers(server):
    """Returns the metrics by name and labels, as Prometheus' own parser reads them."""
    text = server.http.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, *(v for k, v in sorted(s.labels.items()) if k != "model_name")): s.value for s in samples}


def test_metrics_are_vllms(server):
    before = numbers(server)
    server.complete(prompt=["abcd"] * 2, max_tokens=5)
    wait_for(lambda: server.engine.places_used == 0)
    after = numbers(server)

    def grew(*name):
        return after[name] - before.get(name, 0)

    assert grew("vllm:prompt_tokens_total") == 10
    assert grew("vllm:generation_tokens_total") == 10
    assert grew("vllm:request_success_total", "length") == 2
    assert grew("vllm:inter_token_latency_seconds_count") == 8
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert grew(f"vllm:{name}_count") == 2, name
    assert after["vllm:num_requests_running",] == after["vllm:num_requests_waiting",] == 0
    assert after["vllm:num_preemptions_total",] == 0
    assert grew("kanawa:http_responses_total", "/v1/completions", "200") == 1
    # Together the parts make the whole.
    whole = after["vllm:e2e_request_latency_seconds_sum",]
    parts = ("queue", "prefill", "decode")
    assert sum(after[f"vllm:request_{part}_time_seconds_sum",] for part in parts) == pytest.approx(whole)


def test_paths_that_clients_make_up_add_no_series(server):
    for number in range(5):
        server.http.get(f"/made/up/{number}")
    assert not any("made" in str(key) for key in numbers(server))


def test_an_engine_that_has_ended_is_told_of():
    with running_server() as running:
        running.engine.broken = "it ran out of memory"
        for path in ("/health", "/ready"):
            answer = running.http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "failed")
        assert "has to be started again" in running.refused(503, prompt="a")["message"]


HOSTS = [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 403)]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_a_page_under_another_name_reads_nothing(server, host, status):
    answer = server.http.get("/v1/models", headers={"Host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "host_not_allowed"


def test_names_that_are_allowed():
    with running_server(allowed_hosts=("mine.example",)) as running:
        assert running.http.get("/v1/models", headers={"Host": "mine.example:80"}).status_code == 200
    with running_server(keys=Keys(["one"])) as running:
        headers = {"Host": "any.example", **bearer("one")}
        assert running.http.get("/v1/models", headers=headers).status_code == 200


def test_keys():
    with running_server(keys=Keys(["one", "two"], ["root"])) as running:
        assert running.http.get("/health").status_code == 200
        for headers in ({}, bearer("three"), {"Authorization": "Basic one"}, {"Authorization": "one"}):
            answer = running.http.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for key in ("one", "two", "root"):
            assert running.http.get("/v1/models", headers=bearer(key)).status_code == 200
        assert running.post("/load", {}, headers=bearer("one")).status_code == 401
        # The model has come from nowhere that weights could be read from again.
        assert running.post("/load", {}, headers=bearer("root")).status_code == 422


def test_nobody_loads_weights_without_an_administrators_key(server):
    error = server.refused(403, "/load")
    assert "start it with KANAWA_ADMIN_KEY set" in error["message"]


def test_weights_are_loaded_while_requests_run():
    def reload(step):
        if step == 9:
            message = "there is no step 9; there are 1, 2"
            raise UsageError(message)
        return types.SimpleNamespace(params={"w": step}, step=step or 2, state={"bias": step})

    engine = ScriptedEngine(step_seconds=0.001)
    with running_server(keys=Keys(admin=["root"]), model=model_of(engine, reload=reload)) as running:
        load = lambda body: running.post("/load", body, headers=bearer("root"))  # noqa: E731
        body = {"prompt": "a", "max_tokens": 300, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert load({}).json() == {"status": "loaded", "step": 2}
            assert sum(line != "" for line in lines) > 1
        assert load({"step": 1}).json()["step"] == 1
        # What a router learned beside the weights is no parameter: old biases would send tokens to other experts.
        assert engine.loaded == [({"w": None}, {"bias": None}), ({"w": 1}, {"bias": 1})]
        answer = load({"step": 9})
        assert answer.status_code == 422
        assert answer.json()["error"]["message"] == "step: there is no step 9; there are 1, 2"
        assert running.http.get("/v1/models").json()["data"][0]["step"] == 1


def test_keys_in_files(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# ours\n one \n\ntwo\n")
    monkeypatch.setenv("KANAWA_API_KEYS", "three, ,four")
    keys = keys_from(file, None)
    for key in ("one", "two", "three", "four"):
        keys.check_key({"authorization": f"bearer {key}"})
    file.write_text("# none\n")
    with pytest.raises(UsageError, match="holds no key; write one a line, for instance: openssl rand -hex 32"):
        keys_from(file, None)
    with pytest.raises(UsageError, match="can't read keys from"):
        keys_from(tmp_path / "gone", None)


def test_a_server_says_that_it_starts():
    engine = ScriptedEngine()
    engine.may_start.clear()
    with running_server(engine, ready=False) as running:
        assert running.http.get("/health").json() == {"status": "starting"}
        answer = running.http.get("/ready")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert running.refused(503, prompt="a")["code"] == "starting"
        engine.may_start.set()
        wait_for(lambda: running.http.get("/ready").status_code == 200)
        running.complete(prompt="a")


def test_an_engine_that_cant_start_ends_the_server():
    listening = listening_socket("127.0.0.1", 0)
    model = model_of(ScriptedEngine(fails=UsageError("no room")))
    with pytest.raises(UsageError, match="no room"):
        HttpServer(model, ServerConfig(), Keys(), listening).run()


def test_a_port_in_use():
    with listening_socket("127.0.0.1", 0) as taken:
        with pytest.raises(UsageError, match="Address already in use; choose another with --port"):
            listening_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="can't listen at 192.0.2.1:0"):
        listening_socket("192.0.2.1", 0)


def test_draining_finishes_what_runs_and_takes_nothing_new():
    engine = ScriptedEngine(step_seconds=0.02)
    with running_server(engine) as running:
        body = {"prompt": "ab", "max_tokens": 500, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            engine.may_step.clear()
            running.server.stop()
            wait_for(lambda: running.server.service.phase == "draining")
            assert running.http.get("/health").json() == {"status": "draining"}
            answer = running.post("/v1/completions", {"prompt": "a"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert int(answer.headers["retry-after"]) >= 1
            engine.step_seconds = 0.0
            engine.may_step.set()
            texts = [line for line in lines if line]
        assert texts[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in texts[-2]
        running.thread.join(PATIENCE)
        assert not running.thread.is_alive()


def test_what_takes_longer_than_the_grace_is_ended_and_answered():
    engine = ScriptedEngine(step_seconds=0.02)
    with running_server(engine, drain_seconds=0.2) as running:
        body = {"prompt": "ab", "max_tokens": 500, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            began = time.monotonic()
            running.server.stop()
            texts = [line for line in lines if line]
        # By itself it would have taken ten seconds.
        assert time.monotonic() - began < 8
        assert '"finish_reason":"abort"' in texts[-2]


def test_a_models_own_defaults():
    content = b'{"temperature": 0.6, "top_k": 20, "top_p": 7, "do_sample": true, "min_p": "x"}'
    assert generation_defaults({"generation_config.json": content}) == {"temperature": 0.6, "top_k": 20}
    assert generation_defaults({"generation_config.json": b'{"do_sample": false}'}) == {"temperature": 0.0}


def test_the_document_lists_every_route(server):
    document = server.http.get("/openapi.json").json()
    assert set(document["paths"]) >= {"/v1/completions", "/v1/chat/completions", "/tokenize", "/load", "/metrics"}
    schema = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    # A server's own limits are in it.
    assert (body["properties"]["n"]["maximum"], body["properties"]["prompt"]["oneOf"][2]["maxItems"]) == (16, 64)
    assert body["required"] == ["prompt"]
    assert body["additionalProperties"] is False
    # What is refused anyway isn't offered.
    assert "suffix" not in body["properties"]


def test_a_key_may_have_a_weight(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo weight=4\n")
    keys = keys_from(file, None)
    weights = {}
    for name in ("one", "two"):
        digest = keys.check_key({"authorization": f"Bearer {name}"})
        weights[name] = keys.weight_of(digest)
    assert weights == {"one": 1, "two": 4}
    assert keys.weight_of("127.0.0.1") == 1
    file.write_text("secret weight=0\n")
    with pytest.raises(UsageError, match="the weight '0', expected a whole number from 1") as error:
        keys_from(file, None)
    assert "secret" not in str(error.value)


def test_conversations_to_tokenize_are_bounded_as_texts_are(server):
    answer = server.post("/tokenize", {"messages": [{"role": "user", "content": "a" * 1_000_001}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
