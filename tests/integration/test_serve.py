"""`kanawa serve` and `kanawa chat` as processes, on runs and on folders of another library, with the real engine."""

import json
import pathlib
import signal
import socket
import subprocess
import time

import jax
import kanawa as kn
import openai
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.serve.generate import Generator, SamplingConfig
from served_folder import KANAWA, SECONDS, Serving, environment

# A shell that runs tests in the background ignores SIGINT, and every process started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
TEXT = [path.read_bytes() for path in sorted(pathlib.Path(json.__file__).parent.glob("*.py"))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two layers that has learned nothing, with a vocabulary of Python."""
    tokenizer = BytePairTokenizer.Config(vocab_size=384, min_piece_count=2).build().fit(TEXT)
    config = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=384, tied=True)
    model = config.build()
    params = flatten_paths(jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0)))
    folder = tmp_path_factory.mktemp("runs") / "small"
    RunStore().save(folder, StoredModel(config, params, {}, tokenizer.folder_files(), {}))
    return folder


@pytest.fixture(scope="module")
def serving(run):
    made = Serving(run, "--name", "small", KANAWA_ADMIN_KEY="root")
    yield made
    code, complaints = made.end()
    assert code == 0, complaints


def test_what_is_served_is_what_the_model_says(serving, run):
    assert serving.said["model"] == "small"
    assert serving.said["max_length"] == 128
    prompt = list(range(60, 80))
    (choice,) = serving.complete(prompt=prompt, max_tokens=8, return_token_ids=True)
    opened = open_run(run)
    alone = Generator(opened.trainer.model, opened.params)
    (wanted,) = alone.generate([prompt], 8, SamplingConfig(temperature=0.0))
    assert choice["token_ids"] == wanted.token_ids


@pytest.mark.parametrize("prompt", ["def", "def ", "x =  "])
@pytest.mark.parametrize("drawn", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 7}])
def test_a_prompt_gets_the_same_tokens_from_generate_and_serve(serving, run, prompt, drawn):
    (choice,) = serving.complete(prompt=prompt, max_tokens=8, return_token_ids=True, ignore_eos=True, **drawn)
    one = kn.open(run).generate(prompt, max_tokens=8, **drawn)
    assert choice["token_ids"][: len(one.token_ids)] == one.token_ids
    assert choice["text"].startswith(one.text)


def test_scores_are_those_of_the_model(serving, run):
    """What `lm-eval` reads: each token of a prompt, with what came before it."""
    prompt = list(range(60, 90))
    (choice,) = serving.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    opened = open_run(run)
    from kanawa.contracts import Sequences

    model = opened.trainer.model
    caches = Generator(model, opened.params).new_caches(1, 64)
    decode = kn.functional(model, "decode")
    logits = []
    for place in range(len(prompt)):
        sequences = Sequences(lengths=jax.numpy.asarray(place, "int32"))
        token = jax.numpy.asarray([[prompt[place]]])
        (row, caches), _ = decode(model.unstacked(opened.params), {}, token, sequences, caches)
        logits.append(jax.nn.log_softmax(row[0, 0]))
    wanted = [float(logits[i][prompt[i + 1]]) for i in range(len(prompt) - 1)]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-4)


def test_the_client_chats_with_it(serving):
    with openai.OpenAI(base_url=f"{serving.said['url']}/v1", api_key="x") as client:
        messages = [{"role": "user", "content": "def "}]
        asked = {"model": "small", "messages": messages, "max_completion_tokens": 12, "seed": 3}
        whole = client.chat.completions.create(**asked).choices[0].message.content
        stream = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole != ""
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}
        answer = client.chat.completions.create(**{**asked, "max_completion_tokens": 30}, response_format=form)
        assert json.loads(answer.choices[0].message.content) in ("yes", "no")


def test_nothing_is_compiled_and_no_page_is_lost_when_clients_leave(serving):
    host, port = serving.said["url"].removeprefix("http://").split(":")
    for number in range(40):
        body = {"prompt": "def f" * (number % 7 + 1), "max_tokens": 60, "stream": number % 2 == 0}
        content = json.dumps(body).encode()
        with socket.create_connection((host, int(port))) as made:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            made.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            time.sleep(0.003 * (number % 5))
    end = time.monotonic() + SECONDS
    while serving.number("vllm:num_requests_running") + serving.number("vllm:num_requests_waiting"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert serving.number("vllm:kv_cache_usage_perc") == 0
    assert serving.number("vllm:compilations_total") == 0


def test_weights_are_read_again(serving):
    answer = serving.http.post("/load", json={}, headers={"Authorization": "Bearer root"})
    assert answer.json() == {"status": "loaded", "step": 0}
    assert serving.number("vllm:compilations_total") == 0
    answer = serving.http.post("/load", json={"step": 77}, headers={"Authorization": "Bearer root"})
    assert answer.status_code == 422
    assert "77" in answer.json()["error"]["message"]


def test_a_folder_of_another_library_and_a_second_signal(run, tmp_path, installation):
    folder = tmp_path / "theirs"
    done = installation.run("convert", "to-hf", str(run), str(folder))
    assert done.returncode == 0, done.stderr
    made = Serving(folder)
    assert made.said["model"] == "theirs"
    assert made.complete(prompt="def ", max_tokens=4)[0]["finish_reason"] in ("length", "stop")
    # The first signal waits for what runs, and for whoever has not read it all; the second does not.
    body = {"prompt": ["def "] * 15, "max_tokens": 240, "n": 16, "ignore_eos": True, "stream": True}
    with made.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        made.process.send_signal(signal.SIGTERM)
        # Two signals that come before the process is looked at are one: the second, once the first is heard of.
        end = time.monotonic() + SECONDS
        while made.status() not in ("draining", None):
            assert time.monotonic() < end
            time.sleep(0.02)
        if made.status() is None:
            made.end()
            pytest.skip("everything was written before the second signal")
        # While the client still waits: were it gone, there would be nothing left to finish.
        assert made.end()[0] in (143, -signal.SIGTERM)


def test_an_answer_in_the_terminal_is_stopped_and_the_conversation_goes_on(run):
    command = [KANAWA, "chat", str(run), "--max-tokens", "1500", "--temperature", "0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **pipes) as chat:
        chat.stdin.write(b"def f(\n")
        chat.stdin.flush()
        assert chat.stdout.read(1)
        chat.send_signal(signal.SIGINT)
        _, complaints = chat.communicate(b"/nothing\n/reset\n/exit\n", SECONDS)
    assert chat.returncode == 0, complaints
    assert b"no command '/nothing'; /picture FILE shows one with the next message, /reset begins anew" in complaints


@pytest.mark.parametrize("verb", ["serve", "chat"])
def test_what_cant_be_served(verb, tmp_path, installation):
    done = installation.run(verb, str(tmp_path / "gone"))
    assert done.returncode == 2
    assert "there is no run" in done.stderr
    if verb == "serve":
        done = installation.run("serve", str(tmp_path), "--set", "engine.max_sequence=3")
        assert (done.returncode, "did you mean" in done.stderr) == (2, True), done.stderr
        done = installation.run("serve", str(tmp_path), "--port", "70000")
        assert "--port 70000: expected 0 to 65535" in done.stderr
