"""Every option of `kanawa serve` over HTTP, several at once: each by what it changes in an answer."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import httpx2
import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa_layers.convert.safetensors_file import write_file
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.serve.generate import Generator
from kanawa_runtime.serve.model_store import RunStore
from kanawa_runtime.serve.open_run import open_run
from kanawa_runtime.serve.sampling import SamplingConfig

KANAWA = str(pathlib.Path(sys.executable).with_name("kanawa"))
SIZES = ["max_length=64", "max_sequences=4", "prefill_tokens=16", "prefill_sizes=[16]", "batch_sizes=[4]"]
SIZES += ["page_widths=[4]", "max_logprobs=2"]
PROMPT, NEW = list(range(60, 83)), 10
KEY = {"Authorization": "Bearer a-key-of-ours"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, a smaller one that guesses for it, an adapter of peft, keys, a secret and a template."""
    folder = tmp_path_factory.mktemp("serving")
    for name, layers in (("run", 2), ("draft", 1)):
        config = llama(num_layers=layers, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=320)
        model = config.build()
        params = jax.jit(lambda key, model=model: kn.initialize(model, key))(jax.random.key(0))
        params = {**params, "head": jax.tree.map(lambda x: 20 * x, params["head"])}
        files = ByteTokenizer.Config().build().folder_files()
        RunStore().save(folder / name, StoredModel(config, flatten_paths(params), {}, files, {}))
    (folder / "adapter").mkdir()
    rng, module = np.random.default_rng(0), "base_model.model.model.layers.{}.mlp.down_proj.lora_{}.weight"
    factors = {
        module.format(layer, half): 0.5 * rng.standard_normal(shape).astype(np.float32)
        for layer in range(2)
        for half, shape in (("A", (2, 48)), ("B", (32, 2)))
    }
    shapes = {name: ("F32", array.shape) for name, array in factors.items()}
    write_file(folder / "adapter" / "adapter_model.safetensors", shapes, factors.__getitem__)
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["down_proj"]}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(told))
    (folder / "keys").write_text("a-key-of-ours\n")
    (folder / "admin").write_text("a-key-of-the-admin\n")
    (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
    (folder / "template").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    return folder


@pytest.fixture(scope="module")
def wanted(folder):
    """What the model says, one token at a time."""
    opened = open_run(folder / "run")
    greedy = SamplingConfig(temperature=0.0)
    return Generator(opened.trainer.model, opened.params).generate([PROMPT], NEW, greedy)[0].token_ids


class Serving:
    """A server's process, ended with the block."""

    def __init__(self, folder, *options, devices=1, key=None):
        sizes = [word for text in SIZES for word in ("--set", f"engine.{text}")]
        flags = f"--xla_force_host_platform_device_count={devices}"
        self.process = subprocess.Popen(
            [KANAWA, "serve", "run", "--port", "0", "--json", *sizes, *options],
            cwd=folder,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.http = httpx2.Client(base_url=json.loads(line)["url"], timeout=120, headers=key or {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            assert self.number("compilations") == 0
            assert self.number("kv_cache_usage_perc") == 0
        finally:
            self.http.close()
            self.process.terminate()
            code, complaints = self.process.wait(60), self.process.communicate()[1]
        assert code == 0, complaints

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


def check_structures(server):
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 3, "max_tokens": 30}
    for structure, allowed in (({"choice": ["yes", "no"]}, ("yes", "no")), ({"regex": "(ab){2}"}, ("abab",))):
        assert server.post("/v1/completions", **body, structured_outputs=structure)["choices"][0]["text"] in allowed


ADAPTER = ("--adapter", "mine=adapter", "--set", "engine.adapter_slots=1", "--set", "engine.adapter_rank=2")


@pytest.mark.nightly
def test_names_keys_templates_adapters_and_a_draft(folder, wanted):
    options = ("--name", "ours", "--api-key-file", "keys", "--admin-key-file", "admin", "--host", "127.0.0.1")
    options += ("--chat-template", "template", "--draft", "draft", "--set", "engine.speculative_tokens=3")
    with Serving(folder, *options, *ADAPTER, "--set", "server.max_n=2", key=KEY) as server:
        assert {model["id"] for model in server.http.get("/v1/models").json()["data"]} == {"ours", "mine"}
        assert server.ids() == server.ids(model="ours") == wanted
        changed = server.ids(model="mine")
        assert changed != wanted
        check_structures(server)
        messages = [{"role": "user", "content": "ab"}]
        told = server.post("/tokenize", messages=messages, add_generation_prompt=False)
        assert bytes(told["tokens"][-8:]) == b"[user]ab"
        assert server.post("/v1/chat/completions", messages=messages, max_tokens=3)["choices"]
        assert "max_n" in server.post("/v1/completions", 400, prompt="a", n=3)["error"]["message"]
        assert server.http.post("/load", json={}).status_code in (401, 403)
        assert httpx2.get(f"{server.http.base_url}/v1/models").status_code == 401
        loaded = httpx2.post(
            f"{server.http.base_url}/load", json={}, headers={"Authorization": "Bearer a-key-of-the-admin"}, timeout=120
        )
        assert loaded.status_code == 200, loaded.text
        assert (server.ids(), server.ids(model="mine")) == (wanted, changed)
        assert server.number("spec_decode_num_draft_tokens") > 0


@pytest.mark.nightly
def test_an_int8_cache(folder, wanted):
    with Serving(folder, "--set", "engine.int8_cache=true") as server:
        ids = server.ids()
        assert ids == server.ids()
        assert ids[:3] == wanted[:3]
        check_structures(server)


@pytest.mark.nightly
@pytest.mark.parametrize("extra", [(), ("--draft", "draft")], ids=["ngram", "draft"])
def test_a_mesh_of_two_devices_with_adapters_and_speculation(folder, wanted, extra):
    options = ("--on", "cpu-2", "--set", "engine.speculative_tokens=3", *ADAPTER, *extra)
    with Serving(folder, *options, devices=2) as server, Serving(folder, *ADAPTER) as alone:
        assert server.ids() == wanted
        assert server.ids(model="mine") == alone.ids(model="mine") != wanted
        check_structures(server)
        assert server.number("spec_decode_num_draft_tokens") > 0


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2])
def test_prompts_taken_in_by_another_server(folder, wanted, devices):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    on = ("--on", "cpu-2") if devices == 2 else ()
    secret = ("--pages-token-file", "secret", "--set", "engine.transfers_pages=true", *ADAPTER, *on)
    with (
        Serving(folder, "--prefill-listen", str(port), *secret, devices=devices),
        Serving(folder, "--prefill-from", f"127.0.0.1:{port}", *secret, devices=devices) as server,
    ):
        assert server.ids() == wanted
        assert server.ids(model="mine") != wanted
        assert (server.number("kv_transfer_prompts"), server.number("kv_transfer_failures")) == (2, 0)
