"""Every option of `kanawa serve` over HTTP, several at once: each by what it changes in an answer."""

import json
import os
import socket
import subprocess
import sys

import httpx2
import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import from_plain
from kanawa.contracts import Cache, StoredModel
from kanawa_layers.attention.quantised_cache import QuantisedCache
from kanawa_layers.convert.safetensors_file import write_file
from kanawa_layers.modifiers.weights import WeightOnlyModifier
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.runs.open_run import open_run
from kanawa_runtime.serve.generate import Generator, SamplingConfig
from ports import free_port
from xla_options import xla_flags

SIZES = ["max_length=64", "max_sequences=4", "prefill_tokens=16", "prefill_sizes=[16]", "batch_sizes=[4]"]
SIZES += ["page_widths=[4]", "max_logprobs=2"]
PROMPT, NEW = list(range(60, 83)), 10
KEY = {"Authorization": "Bearer a-key-of-ours"}
DOWN, RANK, ALPHA = "stack.layer.feed_forward.down.weight", 2, 8
#: The verb in a process that says at its end what the garbage collector no longer looks at.
PROGRAM = """
import gc, os, sys
from kanawa.cli.main import main
end = os._exit
def say(code):
    print(gc.get_freeze_count(), flush=True)
    end(code)
os._exit = say  # how the verb ends where a thread of its own has not yet
say(main(sys.argv[1:]))
"""


def recipe(layers):
    return llama(num_layers=layers, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=320)


@pytest.fixture(scope="module")
def factors():
    rng = np.random.default_rng(0)
    shapes = {"A": (RANK, 48), "B": (32, RANK)}
    return [
        {half: 0.5 * rng.standard_normal(shape).astype(np.float32) for half, shape in shapes.items()} for _ in range(2)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, factors):
    """Runs of one model, with its weights as trained and in 8 and 4 bits; what else the options name."""
    folder, files = tmp_path_factory.mktemp("serving"), ByteTokenizer.Config().build().folder_files()

    def save(name, config, params):
        RunStore().save(folder / name, StoredModel(config, flatten_paths(jax.device_get(params)), {}, files, {}))

    for name, layers in (("run", 2), ("draft", 1)):
        model = recipe(layers).build()
        params = jax.jit(lambda key, model=model: kn.initialize(model, key))(jax.random.key(0))
        params = {**params, "head": jax.tree.map(lambda x: 20 * x, params["head"])}
        save(name, recipe(layers), params)
        if name == "run":
            for bits in (8, 4):
                config = WeightOnlyModifier.Config(bits=bits).build()(recipe(2))
                save(f"bits{bits}", config, from_plain(config.build(), params, jax.random.key(1)))
    recurrent = mamba2(num_layers=1, input_dim=32, num_heads=4, state_dim=8, vocab_size=320)
    save("recurrent", recurrent, jax.jit(lambda key: kn.initialize(recurrent.build(), key))(jax.random.key(0)))
    (folder / "adapter").mkdir()
    module = "base_model.model.model.layers.{}.mlp.down_proj.lora_{}.weight"
    arrays = {module.format(at, half): array for at, layer in enumerate(factors) for half, array in layer.items()}
    shapes = {name: ("F32", array.shape) for name, array in arrays.items()}
    write_file(folder / "adapter" / "adapter_model.safetensors", shapes, arrays.__getitem__)
    told = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["down_proj"]}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(told))
    (folder / "keys").write_text("a-key-of-ours\n")
    (folder / "admin").write_text("a-key-of-the-admin\n")
    (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
    (folder / "template").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    return folder


@pytest.fixture(scope="module")
def alone(folder, factors):
    """What a run says one token at a time: `alone(run, int8_cache=…, adapted=…)`."""
    known, told = ByteTokenizer.Config().build().known, {}

    def say(run="run", *, int8_cache=False, adapted=False):
        key = run, int8_cache, adapted
        if key not in told:
            opened = open_run(folder / run)
            config, params = opened.trainer.model.config.clone(), opened.params
            if int8_cache:
                kn.replace(config, target=Cache, new=QuantisedCache.Config())
            if adapted:
                changes = np.stack([ALPHA / RANK * layer["A"].T @ layer["B"].T for layer in factors])
                flat = flatten_paths(params)
                params = unflatten_paths({**flat, DOWN: flat[DOWN] + changes})
            generator = Generator(config.build(), params, known=known)
            told[key] = generator.generate([PROMPT], NEW, SamplingConfig(temperature=0.0))[0].token_ids
        return told[key]

    return say


def command(run, *options):
    sizes = [word for text in SIZES for word in ("--set", f"engine.{text}")]
    return [sys.executable, "-c", PROGRAM, "serve", run, "--port", "0", "--json", *sizes, *options]


def environment(devices):
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(devices)}


class Serving:
    """A server's process, ended with the block."""

    def __init__(self, folder, run, *options, devices=1, key=None):
        self.process = subprocess.Popen(
            command(run, *options), cwd=folder, env=environment(devices),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.http = httpx2.Client(base_url=json.loads(line)["url"], timeout=300, headers=key or {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            assert self.number("compilations") == 0
            assert self.number("kv_cache_usage_perc") == 0
        finally:
            self.http.close()
            self.process.terminate()
            kept, complaints = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, complaints
        # Looking through all of JAX takes 0.1 s, in which nobody would be answered.
        assert int(kept) > 100_000

    def post(self, path, status=200, **body):
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def ids(self, **body):
        asked = {"prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        return self.post("/v1/completions", **asked | body)["choices"][0]["token_ids"]

    def number(self, name):
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}"))


def refused(folder, run, *options):
    """Returns what a server says that doesn't start."""
    done = subprocess.run(
        command(run, *options), cwd=folder, env=environment(1), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def check_structures(server):
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 3, "max_tokens": 30}
    for structure, allowed in (({"choice": ["yes", "no"]}, ("yes", "no")), ({"regex": "(ab){2}"}, ("abab",))):
        assert server.post("/v1/completions", **body, structured_outputs=structure)["choices"][0]["text"] in allowed


ADAPTER = ("--adapter", "mine=adapter", "--set", "engine.adapter_slots=1", "--set", "engine.adapter_rank=2")
GUESSES = ("--set", "engine.speculative_tokens=3", "--set", "engine.ngram_min=1")
MESH = ("--on", "cpu-2", "--modify", 'mesh:axes={"tensor":2}')
INT8 = ("--set", "engine.int8_cache=true")


def test_names_keys_templates_adapters_and_a_draft_on_a_mesh(folder, alone):
    options = ("--name", "ours", "--api-key-file", "keys", "--admin-key-file", "admin", "--host", "127.0.0.1")
    options += ("--chat-template", "template", "--draft", "draft", "--set", "server.max_n=2", *GUESSES, *ADAPTER, *MESH)
    with Serving(folder, "run", *options, devices=2, key=KEY) as server:
        assert {model["id"] for model in server.http.get("/v1/models").json()["data"]} == {"ours", "mine"}
        assert server.ids() == server.ids(model="ours") == alone()
        assert server.ids(model="mine") == alone(adapted=True) != alone()
        check_structures(server)
        messages = [{"role": "user", "content": "ab"}]
        told = server.post("/tokenize", messages=messages, add_generation_prompt=False)
        assert bytes(told["tokens"][-8:]) == b"[user]ab"
        assert server.post("/v1/chat/completions", messages=messages, max_tokens=3)["choices"]
        said = server.post("/v1/completions", 400, prompt="a", n=3)["error"]["message"]
        assert said == "n: Input should be less than or equal to 2, got 3"
        assert server.http.post("/load", json={}).status_code == 401
        with httpx2.Client(base_url=server.http.base_url, timeout=300) as other:
            assert other.get("/v1/models").status_code == 401
            loaded = other.post("/load", json={}, headers={"Authorization": "Bearer a-key-of-the-admin"})
        assert loaded.status_code == 200, loaded.text
        assert (server.ids(), server.ids(model="mine")) == (alone(), alone(adapted=True))
        assert server.number("spec_decode_num_draft_tokens") > 0


COMBINED = {
    "int8-cache": ("run", 1, INT8),
    "int8-cache-guesses-adapters": ("run", 1, (*INT8, *GUESSES, *ADAPTER)),
    "int8-cache-mesh-guesses-adapters": ("run", 2, (*INT8, *MESH, *GUESSES, *ADAPTER)),
    "mesh-guesses-adapters": ("run", 2, (*MESH, *GUESSES, *ADAPTER)),
    "another-mesh-adapters": ("run", 2, ("--on", "cpu-2", *GUESSES, *ADAPTER)),
    "8-bits-int8-cache-guesses": ("bits8", 1, (*INT8, *GUESSES)),
    "8-bits-mesh-adapters": ("bits8", 2, (*MESH, *ADAPTER)),
    "4-bits-mesh-guesses": ("bits4", 2, (*MESH, *GUESSES)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMBINED)
def test_quantised_weights_and_caches_adapters_guesses_and_meshes(folder, alone, name):
    run, devices, options = COMBINED[name]
    int8_cache = INT8[-1] in options
    with Serving(folder, run, *options, devices=devices) as server:
        plain = alone(run, int8_cache=int8_cache)
        assert server.ids() == server.ids() == plain
        if ADAPTER[0] in options:
            adapted = server.ids(model="mine")
            assert adapted != plain
            # What is kept in 8 bits has no merged weights to compare with.
            assert run != "run" or adapted == alone(run, int8_cache=int8_cache, adapted=True)
        check_structures(server)
        server.ids(max_tokens=40)  # long enough to come back to what it said before
        assert (server.number("spec_decode_num_draft_tokens") > 0) == (GUESSES[1] in options)


PAIRS = {
    "alone": (1, 1, ADAPTER, 2),
    "mesh": (2, 2, (*ADAPTER, *GUESSES), 2),
    "mesh-for-one": (2, 1, ADAPTER, 2),
    "one-for-a-mesh-with-a-draft": (1, 2, (*GUESSES, "--draft", "draft"), 1),
    "int8-cache": (1, 1, (*INT8, *GUESSES), 1),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAIRS)
def test_prompts_taken_in_by_another_server(folder, alone, name):
    takes, decodes, options, prompts = PAIRS[name]
    port = free_port()
    secret = ("--pages-token-file", "secret", *options)
    on = [MESH if devices == 2 else () for devices in (takes, decodes)]
    int8_cache = INT8[-1] in options
    with (
        Serving(folder, "run", "--prefill-listen", str(port), *secret, *on[0], devices=takes) as first,
        Serving(folder, "run", "--prefill-from", f"127.0.0.1:{port}", *secret, *on[1], devices=decodes) as server,
    ):
        assert server.ids() == alone(int8_cache=int8_cache)
        if ADAPTER[0] in options:
            assert server.ids(model="mine") == alone(adapted=True)
        check_structures(server)
        assert (server.number("kv_transfer_prompts"), server.number("kv_transfer_failures")) == (prompts, 0)
        assert first.number("prompt_tokens_total") == 0, "what the other server asks for is no client's"
        # Pages of another kind: told at once, where every prompt would be taken in here, for ever.
        other = ("--prefill-from", f"127.0.0.1:{port}", "--pages-token-file", "secret", *(() if int8_cache else INT8))
        done = refused(folder, "run", *other)
    assert "its pages have another layout: both engines need one model, the same weights, page_size and dtype" in done
    assert "start both with the same run, step, adapters and engine options" in done


REFUSED = {
    "recurrent-guesses": ("recurrent", GUESSES, "can't speculate", "speculative_tokens=0"),
    "recurrent-pair": (
        "recurrent",
        ("--prefill-from", "127.0.0.1:9", "--pages-token-file", "secret"),
        "",
        "one engine",
    ),
    "recurrent-draft": ("run", ("--draft", "recurrent", *GUESSES), "the draft model has a state", "choose another"),
    "draft-alone": ("run", ("--draft", "draft"), "engine.speculative_tokens is 0", "--set engine.speculative_tokens"),
    "no-such-mesh": ("run", ("--modify", 'mesh:axes={"tensor":3}'), "3", "device"),
    "no-modifier": ("run", ("--modify", "mash"), "mash", "did you mean"),
    "pair-without-a-secret": ("run", ("--prefill-listen", "9100"), "shared secret", "--pages-token-file FILE"),
    "secret-alone": ("run", ("--pages-token-file", "secret"), "--prefill-listen or --prefill-from", "neither"),
    "no-port": (
        "run",
        ("--prefill-from", "9100", "--pages-token-file", "secret"),
        "--prefill-from '9100'",
        "HOST:PORT",
    ),
    "adapter-of-none": ("run", ("--adapter", "mine=draft"), "trained no adapter", "serve it as a model"),
    "adapter-too-wide": ("run", (*ADAPTER[:2], "--adapter", "mine=keys"), "'mine=keys' is given twice", "a name"),
    "keys-that-are-none": ("run", ("--api-key-file", "nowhere"), "can't read keys from", "one a line"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if i < 2 else pytest.mark.nightly) for i, n in enumerate(REFUSED)]
)
def test_what_cant_be_given_is_refused_before_it_listens(folder, name):
    run, options, what, instead = REFUSED[name]
    told = refused(folder, run, *options)
    assert what in told
    assert instead in told


@pytest.mark.nightly
def test_a_port_for_pages_that_is_taken(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = refused(folder, "run", "--prefill-listen", port, "--pages-token-file", "secret")
    assert f"can't listen at 127.0.0.1:{port} for the other server: Address already in use" in told
    assert "--prefill-listen" in told


def test_a_trained_run_is_served_with_its_weights_in_8_bits(folder, alone):
    made, stored = (
        flatten_paths(open_run(folder / run, modifiers=modifiers).params)
        for run, modifiers in (("run", ("weight-only:bits=8",)), ("bits8", ()))
    )
    assert made.keys() == stored.keys()
    for path, array in made.items():
        np.testing.assert_array_equal(array, stored[path], err_msg=path)
    with Serving(folder, "run", "--modify", "weight-only:bits=8") as server:
        assert server.ids() == alone("bits8")


def test_a_tokenizer_without_a_stop_token_only_loses_structures(folder):
    cfg, files = recipe(1), dict(ByteTokenizer.Config().build().folder_files())
    for name, key in (("tokenizer_config.json", "eos_token"), ("generation_config.json", "eos_token_id")):
        content = {n: v for n, v in json.loads(files[name]).items() if n not in (key, "bos_token", "bos_token_id")}
        files[name] = json.dumps(content).encode()
    params = jax.jit(lambda key: kn.initialize(cfg.build(), key))(jax.random.key(0))
    RunStore().save(folder / "mute", StoredModel(cfg, flatten_paths(jax.device_get(params)), {}, files, {}))
    with Serving(folder, "mute") as server:
        assert len(server.ids()) == NEW
        said = server.post("/v1/completions", 422, prompt=PROMPT, structured_outputs={"regex": "a"})["error"]
        assert "structured output ends with a stop token" in said["message"]
        assert (
            "prompt: it is empty, and the tokenizer's folder names no end token"
            in server.post("/v1/completions", 400, prompt="")["error"]["message"]
        )
        assert server.http.get("/tokenizer_info").json()["eos_token"] is None
