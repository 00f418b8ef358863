"""Every kind of cache and every mesh through the engine: the tokens of one-at-a-time decoding on one device."""

import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from asking import ids_of, outputs_of
from kanawa.arrays.plan import ExecutionPlan
from kanawa.arrays.shardings import param_shardings
from kanawa.contracts import Cache, CacheView, DeviceMesh, Environment, FeedForward, Positions
from kanawa.errors import UsageError
from kanawa.module import param_specs
from kanawa_layers.attention.quantised_cache import QuantisedCache
from kanawa_layers.modifiers.mixture import ExpertCapacity
from kanawa_layers.moe.expert_choice import ExpertChoiceMixture
from kanawa_layers.recipes.deepseek_v3 import deepseek_v3
from kanawa_layers.recipes.gemma2 import gemma2
from kanawa_layers.recipes.gemma3 import gemma3
from kanawa_layers.recipes.gemma4 import gemma4
from kanawa_layers.recipes.hf_config import FULL, SLIDING
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mamba2 import mamba2
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_layers.recipes.qwen3_next import qwen3_next
from kanawa_layers.recipes.recurrent_gemma import recurrent_gemma
from kanawa_parallel.modifiers import strategies_for
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.paged_model import cache_shardings, paged_model
from kanawa_runtime.serve.engine.request import Request, RequestError, SamplingParams
from kanawa_runtime.serve.generate import Generator, SamplingConfig

VOCAB, NEW = 64, 10
WIDE = {"input_dim": 32, "num_heads": 4, "vocab_size": VOCAB}
LOCAL_LOCAL_GLOBAL = ("sliding_attention",) * 2 + ("full_attention",)
HEADS = {**WIDE, "num_kv_heads": 2, "hidden_dim": 48}


KINDS = {
    "gemma3": lambda: gemma3(num_layers=3, **HEADS, head_dim=8, window=6, kinds=LOCAL_LOCAL_GLOBAL),
    # A window, keys of other layers, wider heads in global layers and an input for each layer.
    "gemma4": lambda: gemma4(
        num_layers=5, **HEADS, head_dim=8, global_head_dim=16, window=6, num_sharing=2, double_wide=True,
        per_layer_dim=4, kinds=(FULL, SLIDING),
    ),
    "deepseek-v3": lambda: deepseek_v3(
        num_layers=2, num_dense_layers=1, **WIDE, hidden_dim=48, query_rank=12, kv_rank=8, nope_dim=6, rope_dim=4,
        value_dim=8, num_experts=4, top_k=2, expert_dim=16, num_groups=2, top_groups=1,
    ),
    "recurrent-gemma": lambda: recurrent_gemma(num_layers=3, **{**HEADS, "num_kv_heads": 1}, window=6),
    "qwen3-next": lambda: qwen3_next(
        num_layers=3, **HEADS, head_dim=8, kinds=("linear_attention", "full_attention"), linear_heads=4,
        linear_key_heads=2, linear_head_dim=8, linear_value_dim=8, num_experts=4, top_k=2, expert_dim=16, shared_dim=8,
    ),
    "gemma2": lambda: gemma2(num_layers=2, **HEADS, head_dim=8, query_scalar=8.0, window=6),
    "mamba2": lambda: mamba2(num_layers=2, input_dim=32, num_heads=4, state_dim=8, vocab_size=VOCAB),
    "mixtral": lambda: mixtral(num_layers=2, **HEADS, num_experts=4, top_k=2),
}  # fmt: skip
DAILY = ("gemma4", "deepseek-v3", "qwen3-next")


def parameters(model):
    """Returns parameters whose logits differ by more than a rounding: embeddings and heads are drawn larger."""
    params = jax.jit(lambda key: kn.initialize(model, key))(jax.random.key(1))
    for name in ("embedding", "head"):
        params = {**params, **({name: jax.tree.map(lambda x: 20 * x, params[name])} if name in params else {})}
    return params


def prompts():
    """Returns prompts, some longer than a chunk, two of them with one beginning."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCAB, 60).tolist()
    return [tuple(ids[:n]) for n in (1, 7, 37)] + [tuple(ids[:24] + [1]), tuple(rng.integers(0, VOCAB, 19).tolist())]


def alone(model, params, state=None):
    """Returns what one-at-a-time decoding gives."""
    generator = Generator(model, params, state=state)
    greedy = SamplingConfig(temperature=0.0)
    return [generator.generate([prompt], NEW, greedy)[0].token_ids for prompt in prompts()]


def through_engine(model, params, state=None, environment=None, **changes):
    """Returns what the engine gives, and its numbers."""
    config = EngineConfig(
        max_sequences=4, max_length=56, page_size=4, prefill_tokens=16, num_pages=24, max_batched_tokens=24,
        batch_sizes=(4,), prefill_sizes=(16,), page_widths=(14,), max_logprobs=0, prompt_logprobs=False, **changes,
    )  # fmt: skip
    engine = LLMEngine(model, params, state, environment, config)
    engine.start()
    sampling = SamplingParams(max_tokens=NEW, temperature=0.0)
    requests = [Request(id=str(i), prompt_ids=prompt, sampling=sampling) for i, prompt in enumerate(prompts())]
    given = outputs_of(engine, requests)
    assert {outputs[-1].error for outputs in given.values()} == {None}
    stats = engine.stats()
    engine.stop()
    engine.check_pages()
    assert stats["compilations"] == 0
    return [ids_of(outputs) for outputs in given.values()], stats


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in DAILY else pytest.mark.nightly) for k in KINDS])
def test_every_kind_of_layer_decodes_as_alone(kind):
    model = KINDS[kind]().build()
    params, state = parameters(model), kn.initial_state(model, jax.random.key(0))
    ids, stats = through_engine(model, params, state)
    assert ids == alone(model, params, state)
    # What recurrent layers keep of a sequence lies in no page, so that nobody can share it.
    recurrent = kind in ("recurrent-gemma", "qwen3-next", "mamba2")
    assert (stats["prefix_cache_queries"] == 0) == recurrent


def test_an_int8_cache_gives_what_it_gives_alone():
    cfg = llama(num_layers=2, **HEADS)
    model = cfg.build()
    params = parameters(model)
    kn.replace(cfg, target=Cache, new=QuantisedCache.Config())
    ids, _ = through_engine(model, params, int8_cache=True)
    assert ids == alone(cfg.build(), params)


def environment_of(axes):
    """Returns the environment of a mesh, with the strategies that go with its axes."""
    strategies = [cfg.build() for cfg in strategies_for(axes)]
    plan = ExecutionPlan(
        param_rules=tuple(rule for s in strategies for rule in s.param_rules()),
        activation_rules=tuple(rule for s in strategies for rule in s.activation_rules()),
        distributed=tuple(way for s in strategies for way in s.distributed()),
    )
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    return Environment(plan, DeviceMesh.Config(axes=axes).build().mesh(devices))


@pytest.mark.parametrize(
    ("kind", "axes"),
    [
        ("dense", {"tensor": 2}),
        ("mixture", {"expert": 2, "tensor": 2}),
        pytest.param("dense", {"fsdp": 2, "tensor": 2}, marks=pytest.mark.nightly),
        pytest.param("mixture", {"expert": 4}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_mesh_gives_the_tokens_of_one_device(kind, axes):
    cfg = llama(num_layers=2, **HEADS) if kind == "dense" else mixtral(num_layers=2, **HEADS, num_experts=4, top_k=2)
    model = cfg.build()
    params, where = parameters(model), environment_of(axes)
    shardings = param_shardings(param_specs(model), where.plan.param_rules, where.mesh)
    with where.active():
        placed = jax.device_put(params, shardings)
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(placed))
    ids, _ = through_engine(model, placed, environment=where)
    assert ids == alone(model, jax.tree.map(jnp.asarray, params))


def test_a_mixture_with_a_capacity_is_served_without_and_says_so(caplog):
    cfg = mixtral(num_layers=2, **HEADS, num_experts=4, top_k=2)
    plain = cfg.build()
    # Room for half of the tokens: whoever shares the batch would decide who is dropped.
    limited = ExpertCapacity.Config(factor=0.5, eval_factor=0.5).build()(cfg.clone()).build()
    params = parameters(plain)
    ids, _ = through_engine(limited, params)
    assert ids == alone(plain, params)
    assert "CapacityDispatcher may drop tokens for others of their batch" in caplog.text
    rows = np.asarray([prompts()[2]], np.int32)
    whole, cut = (kn.functional(model, "predict")(params, {}, rows)[0] for model in (plain, limited))
    assert float(jnp.max(jnp.abs(whole - cut))) > 1e-3


def test_experts_that_choose_from_the_whole_batch_are_refused():
    cfg = llama(num_layers=2, **HEADS)
    kn.replace(cfg, target=FeedForward, new=ExpertChoiceMixture.Config(num_experts=4, hidden_dim=48))
    model = cfg.build()
    with pytest.raises(UsageError, match=r"feed_forward \(a ExpertChoiceMixture\) the output of a token depends on"):
        LLMEngine(model, {}, config=EngineConfig(max_sequences=4))


def test_caches_that_do_not_divide_say_what_stays_whole(caplog):
    model, where = llama(num_layers=2, **{**HEADS, "num_kv_heads": 1}).build(), environment_of({"tensor": 2})
    spec = paged_model(model, EngineConfig(max_sequences=4, num_pages=24), 56, "float32").cache_spec
    shardings = jax.tree.leaves(cache_shardings(spec, where))
    assert all(sharding.is_fully_replicated for sharding in shardings)
    assert "of the cache, " in caplog.text
    assert "whole on every device: the mesh {'tensor': 2} doesn't divide" in caplog.text
    assert "'kv_heads': 1" in caplog.text
    caplog.clear()
    divides = llama(num_layers=2, **HEADS).build()
    spec = paged_model(divides, EngineConfig(max_sequences=4, num_pages=24), 56, "float32").cache_spec
    assert not any(s.is_fully_replicated for s in jax.tree.leaves(cache_shardings(spec, where)))
    assert not caplog.text


class CoarseCache(Cache):
    """A stranger's cache of rows: keys are rounded, so that it isn't exact; it knows of no slots and no pages."""

    @kn.nowrap
    def spec(self, rows, length, dtype):
        cfg = self.config
        axes = ("batch", "kv_length", "kv_heads", "head_dim")
        return {
            name: kn.ParamSpec((rows, length, cfg.num_kv_heads, width), axes, dtype, kn.zeros)
            for name, width in {"keys": cfg.key_dim, "values": cfg.value_dim}.items()
        }

    def extend(self, state, k, v, sequences):
        assert sequences.slots is None and sequences.page_table is None
        lengths = jnp.broadcast_to(0 if sequences.lengths is None else sequences.lengths, k.shape[:1])
        write = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0))
        new = {"keys": jnp.round(k * 2) / 2, "values": v}
        state = {name: write(state[name], new[name].astype(state[name].dtype), lengths) for name in state}
        return CacheView(state, state["keys"], state["values"], kv_lengths=lengths + k.shape[1])


class TurnedCache(CoarseCache):
    """The same with its rows elsewhere."""

    @kn.nowrap
    def spec(self, rows, length, dtype):
        specs = super().spec(rows, length, dtype)
        return {n: dataclasses.replace(s, axes=("kv_length", "batch", *s.axes[2:])) for n, s in specs.items()}


def with_cache(new):
    cfg = llama(num_layers=2, **HEADS)
    kn.replace(cfg, target=Cache, new=new)
    return cfg.build()


def test_a_strangers_cache_that_isnt_exact_is_served_as_it_is():
    plain, coarse = llama(num_layers=2, **HEADS).build(), with_cache(CoarseCache.Config())
    params = parameters(plain)
    wanted = alone(coarse, params)
    assert wanted != alone(plain, params)
    ids, stats = through_engine(coarse, params)
    assert ids == wanted
    assert stats["prefix_cache_queries"] == 0
    with pytest.raises(UsageError, match="int8_cache would replace the cache of .*CoarseCache"):
        through_engine(coarse, params, int8_cache=True)


def test_a_cache_that_cant_be_served_is_an_error():
    with pytest.raises(UsageError, match="TurnedCache can't be served: its array keys has the axes"):
        through_engine(with_cache(TurnedCache.Config()), None)


def test_a_quantised_cache_is_served_quantised():
    quantised, params = with_cache(QuantisedCache.Config()), parameters(llama(num_layers=2, **HEADS).build())
    ids, stats = through_engine(quantised, params)
    assert ids == alone(quantised, params)
    assert stats["prefix_cache_queries"] > 0


def test_a_models_own_length_bounds_the_engine_unless_asked(caplog):
    cfg = llama(num_layers=1, **HEADS)
    assert cfg.build().trained_length() is None
    for trained, scaling, own in ((512, None, 512), (512, kn.component("layers", "linear-scaling"), 2048)):
        positions = [node for _, node in cfg.walk() if isinstance(node, Positions.Config)]
        for node in positions:
            node.set(trained_length=trained, scaling=None if scaling is None else scaling.Config(factor=4.0))
        model = cfg.build()
        assert model.trained_length() == own
        built = LLMEngine(model, parameters(model), config=EngineConfig(max_sequences=1))
        assert built.limits.max_length == own
        prompt = Request(id="0", prompt_ids=(1,) * (own + 1))
        with pytest.raises(RequestError, match=f"sequences at most {own}"):
            built.check_request(prompt)
    assert "may make no sense" not in caplog.text
    asked = LLMEngine(model, parameters(model), config=EngineConfig(max_sequences=1, max_length=4096))
    asked.check_request(prompt)
    assert "trained on sequences of 2048" in caplog.text
