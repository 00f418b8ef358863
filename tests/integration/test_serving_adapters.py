"""Several adapters in one engine: every request gets what its own merged model gives, whoever shares the batch."""

import json
import shutil
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
import pytest
from asking import ids_of, outputs_of
from kanawa.arrays.tree import flatten_paths, map_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, to_plain
from kanawa.contracts import StoredAdapter, StoredModel
from kanawa.errors import KanawaError, UsageError
from kanawa_layers.convert.safetensors_file import write_file
from kanawa_layers.modifiers.weights import LoRAModifier
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.runs.adapter_folder import load_adapter
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.request import Request, RequestError, SamplingParams
from kanawa_runtime.serve.generate import Generator, SamplingConfig

CONFIG = EngineConfig(
    max_sequences=4, max_length=64, page_size=4, prefill_tokens=16, num_pages=40, max_batched_tokens=32,
    batch_sizes=(4,), page_widths=(16,), prefill_sizes=(8,), prefill_rows=(4,), max_logprobs=1, prompt_logprobs=False,
    adapter_slots=2, adapter_rank=4,
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=10, temperature=0.0)


def recipe():
    return llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=50, tied=True)


@pytest.fixture(scope="module")
def base():
    model = recipe().build()
    return model, jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(0))


def trained(base_params, seed, rank):
    """Returns an adapter, and the parameters it is merged into."""
    module = LoRAModifier.Config(rank=rank, alpha=3.0 * rank, targets=("**.stack.**",)).build()(recipe()).build()
    rng = np.random.default_rng(seed)
    own = map_paths(lambda _, s: np.asarray(0.15 * rng.standard_normal(s.shape), np.float32), kn.param_specs(module))
    own = {path: leaf for path, leaf in flatten_paths(own).items() if ".adapter." in path}
    whole = unflatten_paths({**flatten_paths(base_params), **own})
    return StoredAdapter(adapter_factors(module, unflatten_paths(own))), to_plain(module, whole)


@pytest.fixture(scope="module")
def adapters(base):
    return {name: trained(base[1], seed, rank) for seed, (name, rank) in enumerate([("a", 1), ("b", 4), ("c", 3)])}


@pytest.fixture(scope="module")
def engine(base, adapters):
    built = LLMEngine(*base, config=CONFIG)
    built.add_adapter("a", adapters["a"][0])
    built.start()
    built.add_adapter("b", adapters["b"][0])
    yield built
    built.stop()
    built.check_pages()


def answers(engine, requests):
    given = outputs_of(engine, requests)
    cached = {name: sum(output.cached_tokens for output in outputs) for name, outputs in given.items()}
    return {name: ids_of(outputs) for name, outputs in given.items()}, cached


def wanted(base, adapters, name, prompt):
    params = base[1] if name is None else adapters[name][1]
    (answer,) = Generator(base[0], params).generate([prompt], 10, SamplingConfig(temperature=0.0))
    return answer.token_ids


def test_each_request_gets_what_its_merged_model_gives(engine, base, adapters):
    rng = np.random.default_rng(0)
    shared = tuple(rng.integers(0, 50, 17).tolist())
    requests = [
        Request(id=f"{i}", prompt_ids=shared[: 17 - i % 3], sampling=GREEDY, adapter=[None, "a", "b"][i % 3])
        for i in range(9)
    ]
    together, cached = answers(engine, requests)
    for request in requests:
        assert together[request.id] == wanted(base, adapters, request.adapter, request.prompt_ids)
    # One prompt, three answers: no adapter read pages that another one wrote, and each did read its own.
    assert len({tuple(ids) for ids in together.values()}) >= 3
    again, cached = answers(engine, [Request(id="x", prompt_ids=shared, sampling=GREEDY, adapter="b")])
    # Its fourth page held what the fifteen tokens before it were continued with.
    assert cached["x"] == 12
    assert again["x"] == wanted(base, adapters, "b", shared)
    assert engine.stats()["compilations"] == 0


def test_adapters_come_and_go_while_it_runs(engine, base, adapters):
    prompt = tuple(range(1, 14))
    with pytest.raises(UsageError, match="all 2 slots for adapters are taken"):
        engine.add_adapter("c", adapters["c"][0])
    with pytest.raises(UsageError, match="there is an adapter 'a' already"):
        engine.add_adapter("a", adapters["c"][0])
    first, _ = answers(engine, [Request(id="1", prompt_ids=prompt, sampling=GREEDY, adapter="a")])
    engine.remove_adapter("a")
    with pytest.raises(RequestError, match="there is no adapter 'a'.*this engine has b") as refused:
        engine.submit(Request(id="2", prompt_ids=prompt, sampling=GREEDY, adapter="a"), print)
    assert refused.value.field == "adapter"
    # Another one under the same name: what the first one wrote into the cache isn't found.
    engine.add_adapter("a", adapters["c"][0])
    second, cached = answers(engine, [Request(id="3", prompt_ids=prompt, sampling=GREEDY, adapter="a")])
    assert cached["3"] == 0
    assert first["1"] == wanted(base, adapters, "a", prompt)
    assert second["3"] == wanted(base, adapters, "c", prompt)
    engine.load(base[1])
    third, _ = answers(engine, [Request(id="4", prompt_ids=prompt, sampling=GREEDY, adapter="a")])
    assert third["4"] == second["3"]
    engine.remove_adapter("a")
    engine.add_adapter("a", adapters["a"][0])
    assert engine.adapters == ("b", "a")
    assert engine.stats()["compilations"] == 0


def test_what_does_not_fit_is_refused(engine, base, adapters):
    factors = adapters["c"][0].factors
    path = next(iter(factors))
    a, b = factors[path]
    wide = StoredAdapter({path: (np.repeat(a, 3, -1), np.repeat(b, 3, 1))})
    for adapter, said in [
        (wide, "'x' has rank 9, and this engine takes 4: raise adapter_rank"),
        (StoredAdapter({path: (a[:, :5], b)}), "made for other weights"),
        (StoredAdapter({"head": (a, b)}), "changes head: only projections of the blocks"),
    ]:
        with pytest.raises(UsageError, match=said):
            engine.add_adapter("x", adapter)
    plain = LLMEngine(*base, config=CONFIG.clone().set(adapter_slots=0))
    with pytest.raises(UsageError, match="no slots for adapters: set adapter_slots"):
        plain.add_adapter("x", adapters["a"][0])


def test_runs_that_trained_an_adapter_and_those_that_did_not(tmp_path, base):
    module = LoRAModifier.Config(rank=2, alpha=6.0, targets=("**.attention.**",)).build()(recipe()).build()
    rng = np.random.default_rng(4)
    params = map_paths(lambda _, s: rng.standard_normal(s.shape).astype(np.float32), kn.param_specs(module))
    RunStore().save(tmp_path / "tuned", StoredModel(module.config, flatten_paths(params)))
    read = load_adapter(tmp_path / "tuned", base[0].config)
    wanted_factors = adapter_factors(module, params)
    assert read.factors.keys() == wanted_factors.keys()
    assert len(read.factors) == 4
    for path, (a, b) in read.factors.items():
        np.testing.assert_array_equal(a, wanted_factors[path][0])
        # Scaled by alpha / rank.
        np.testing.assert_allclose(b, 3.0 * flatten_paths(params)[f"{path}.adapter.lora_b"], rtol=1e-6)
    other = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=64, vocab_size=50, tied=True)
    with pytest.raises(UsageError, match=r"trained beside other weights than this model's: stack.layer.feed_forward"):
        load_adapter(tmp_path / "tuned", other)
    RunStore().save(tmp_path / "plain", StoredModel(recipe(), jax.device_get(flatten_paths(base[1]))))
    with pytest.raises(UsageError, match="trained no adapter: train it with --modify lora"):
        load_adapter(tmp_path / "plain", base[0].config)


def test_folders_of_peft_and_what_is_none(tmp_path, base):
    rng = np.random.default_rng(1)
    q = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
    arrays = {
        f"{q}A.weight": rng.standard_normal((2, 32)).astype(np.float32),
        f"{q}B.weight": np.ones((32, 2), np.float32),
    }
    folder = tmp_path / "peft"
    folder.mkdir()
    write_file(
        folder / "adapter_model.safetensors",
        {name: ("F32", array.shape) for name, array in arrays.items()},
        arrays.__getitem__,
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    read = load_adapter(folder, base[0].config)
    assert list(read.factors) == ["stack.layer.attention.query"]
    assert not read.factors["stack.layer.attention.query"][1][0].any()
    shutil.rmtree(folder)
    Path(folder).mkdir()
    with pytest.raises(KanawaError, match="holds no adapter of a known kind.*peft.*run"):
        load_adapter(folder, base[0].config)
