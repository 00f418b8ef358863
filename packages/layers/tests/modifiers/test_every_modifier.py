"""Every modifier against every family: it applies and the model's program changes, or it says what doesn't fit.

All is abstract: models are built, and their programs traced, without one array.
"""

import functools
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.modifiers import configured, parse_modifier
from kanawa.contracts import Batch, EncoderDecoderBatch, ImageBatch, ImageChatBatch, ImageTextBatch, SpeechBatch
from kanawa.errors import ConfigError, KanawaError
from kanawa.plugins import host
from kanawa_layers.convert.families import model_config
from kanawa_layers.positions.rotary import Rotary

FIXTURES = Path(__file__).parent.parent / "fixtures"
FAMILIES = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))
#: Families whose parts differ most; the others wait for the night.
QUICK = ("deepseek_v3", "llama3", "mamba2", "t5")
#: What each modifier is called with, if not with nothing: where a family has one value already, the other changes it.
CALLS = {
    "autoencoder": [":folder=vae"],
    "text-encoder": [":folder=clip"],
    "mixer": [":kind=gated-delta-net", ":kind=lstm"],
    "sparse-attention": [":top_k=3,rope_dim=16,head_dim=16"],
    "hyper-connections": [":streams=2"],
    "norm": [":kind=layer-norm", ":kind=l2-norm"],
    "dot-product": [":kind=sigmoid-dot-product"],
    "activation": [":name=sigmoid"],
    "block": [":kind=parallel-block", ":kind=sandwich-norm-block"],
    "label-head": [":labels=[bad,good]", ":labels=[bad,good],of_tokens=true"],
    "embedding-loss": ["", ":pooling=last"],
    "vocab": [":size=100,multiple=8"],
    "tie-embeddings": ["", ":tied=false"],
    "logit-cap": [":cap=3"],
    "soft-cap": [":cap=3"],
    "attention-bias": ["", ":inputs=false", ":output=true"],
    "attention-mask": [":mask=kanawa_layers.attention.masks:PrefixLM"],
    "feed-forward-bias": ["", ":bias=false"],
    "cache": [":kind=ring", ":kind=paged", ":kind=quantised", ":kind=ring,int8=true"],
    "distill": [":teacher=llama-tiny"],
    "moe": [":num_experts=6,top_k=1,shared_hidden_dim=8"],
    "qk-norm": ["", ":all_heads=true"],
    "kv-heads": ["", ":count=2"],
    "window": [":size=3"],
    "rope": [":theta=777"],
    "rope-yarn": ["", ":original_length=8"],
    "rope-longrope": [":short_factors=[1,1,1,1],long_factors=[2,2,2,2]"],
    "shared-kv": ["", ":last=1"],
    "weight-only": [":bits=8", ":bits=4,group_size=2"],
    "qlora": [":group_size=2"],
}
#: What has to come before a modifier.
BEFORE = dict.fromkeys(("cispo", "dapo", "gspo"), "policy-loss")
#: Where a modifier has one call only, and the family is what it makes of others.
ALREADY = {
    "sinks": {"gpt_oss"},
    "attention-gate": {"qwen3_5", "qwen3_5_moe", "qwen3_next"},
    "moe-loss-free": {"deepseek_v3", "deepseek_v32", "glm4_moe", "kimi_k2"},
    "no-positions": {"bert", "clip", "gpt2", "siglip", "vit", "whisper"},
}
_ADDRESS = re.compile(r"0x[0-9a-f]+")
NAMES = sorted(s.name for s in host().components("modifiers") if s.distribution == "kanawa-layers")


@functools.cache
def family(name):
    return model_config(json.loads((FIXTURES / name / "config.json").read_text()))


class Experiment(kn.Config):
    model: kn.Module.Config = kn.REQUIRED


def batch_of(cfg):
    ints, ones = jnp.ones((2, 6), jnp.int32), jnp.ones((2, 6))
    kind = cfg._target.batch
    if kind is ImageBatch:
        side = math.isqrt(cfg.encoder.positions.max_length - 1) * cfg.encoder.patches.patch_size
        return ImageBatch(jnp.ones((2, side, side, 3), jnp.uint8), jnp.ones(2, jnp.int32), jnp.ones(2))
    if kind is ImageChatBatch:
        images = jnp.ones((2, 1, *cfg._target.picture_tokens(cfg).shape), jnp.uint8)
        return ImageChatBatch(images, ints, ints, ints, ints, ones)
    if kind is ImageTextBatch:
        (side, _, channels), ids = cfg._target.row_shapes(cfg)["images"], ints
        return ImageTextBatch(jnp.ones((2, side, side, channels), jnp.uint8), ids, ids, jnp.ones(2))
    if kind is SpeechBatch:
        return SpeechBatch(
            jnp.ones((2, 1600)), jnp.full(2, 1600, jnp.int32), jnp.ones((2, 3), jnp.int32), jnp.ones((2, 3))
        )
    if kind is EncoderDecoderBatch:
        return EncoderDecoderBatch(ints, ints, ints, ints, ints, ints, ints, ones)
    return Batch(ints, ints, ints, ints, ones)


def program(cfg):
    """Returns everything about a model that a modifier may change: parameters, state, training's program, cache."""
    model, batch = cfg.build(), batch_of(cfg)
    specs = [flatten_paths(of(model)) for of in (kn.param_specs, kn.state_specs)]
    shapes = [{path: jax.ShapeDtypeStruct(s.shape, s.dtype) for path, s in flat.items()} for flat in specs]
    params, state = (unflatten_paths(flat) for flat in shapes)
    step = lambda p, s: kn.functional(model)(p, s, batch, key=jax.random.key(0), train=True)[1].losses  # noqa: E731
    traced = _ADDRESS.sub("", str(jax.make_jaxpr(step)(params, state)))
    cache = repr(model.cache_spec(2, 8, "float32")) if hasattr(model, "cache_spec") else ""
    return repr(specs), traced, cache


@functools.cache
def original(name):
    return program(family(name))


def outcome(call, name):
    """Returns what becomes of a family: "changed", "the same", "idle", or the words it is refused with."""
    modifier, values = parse_modifier(call)
    before = Experiment(model=family(name))
    try:
        if modifier in BEFORE:
            before = configured(BEFORE[modifier], {})(before)
        after = configured(modifier, values)(before.clone())
        if not kn.diff(before, after):
            return "the same"
        return "changed" if program(after.model) != original(name) else "idle"
    except KanawaError as refusal:
        return "\n".join([str(refusal), *getattr(refusal, "__notes__", ())])


@functools.cache
def parts(name):
    """Returns what a message may name: classes and places of the model's parts, or the vocabulary of a teacher."""
    nodes = list(family(name).walk())
    kinds = {node._target.__name__ for _, node in nodes if node._target is not None}
    return kinds | {path for path, _ in nodes if path} | {"teacher.vocab_size"}


@pytest.mark.parametrize("modifier", NAMES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.nightly) for n in FAMILIES])
def test_a_modifier_changes_the_program_or_names_what_does_not_fit(modifier, name):
    outcomes = {f"{modifier}{call}": outcome(f"{modifier}{call}", name) for call in CALLS.get(modifier, [""])}
    for call, words in outcomes.items():
        assert words != "idle", f"{call} sets fields of {name} that nothing reads"
        refused = words not in ("changed", "the same")
        assert not refused or any(part in words for part in parts(name)), f"{call} names no part of {name}: {words}"
    silent = all(words == "the same" for words in outcomes.values()) and name not in ALREADY.get(modifier, ())
    assert not silent, f"{modifier} leaves {name} as it was, without a word"


def test_every_call_is_of_a_modifier_there_is():
    assert set(CALLS) | set(ALREADY) <= set(NAMES)


@pytest.mark.parametrize("where", ["**", "**.attention.positions"])
def test_positions_that_nobody_shares_any_more_are_gone_and_logged(where, caplog):
    cfg = configured("rope", {"where": where})(Experiment(model=family("t5")))
    assert cfg.model.encoder.relative_bias is cfg.model.decoder.relative_bias is None
    assert "rope: model.encoder.relative_bias is removed, because no layer shares it any more" in caplog.text
    program(cfg.model)


def test_positions_that_some_layers_share_stay():
    cfg = configured("rope", {"where": "model.decoder.**"})(Experiment(model=family("t5")))
    assert cfg.model.encoder == family("t5").encoder
    program(cfg.model)


def test_what_cannot_be_shared_is_named():
    cfg = configured("rope", {"where": "**.relative_bias"})(Experiment(model=family("t5")))
    with pytest.raises(ConfigError, match="encoder: relative_bias is Rotary.Config, which adds nothing to logits"):
        cfg.model.build()


def test_a_block_does_not_lose_a_branch():
    message = "block: CrossPreNormBlock.Config can't become ParallelBlock.Config: it would lose its cross_attention"
    with pytest.raises(ConfigError, match=message):
        configured("block", {"kind": "parallel-block", "where": "model.decoder.**"})(Experiment(model=family("t5")))
    with pytest.raises(
        ConfigError,
        match="it has no attention and feed_forward for it and would lose its mixer",
    ):
        configured("block", {"kind": "parallel-block"})(Experiment(model=family("mamba2")))


@pytest.mark.parametrize(
    ("call", "name", "length"),
    [
        ("rope-yarn", "qwen2", 64),
        ("rope-yarn", "llama3", 16),  # stretched from 16 tokens already: that is what it was trained on without
        ("rope-yarn:original_length=48", "qwen2", 48),
        ("rope-llama3", "gemma2", 64),
        ("rope-dynamic-ntk:factor=3", "olmo2", 64),
        ("rope-longrope:short_factors=[1,1],long_factors=[2,2]", "mistral", 64),
    ],
)
def test_stretching_starts_from_what_the_model_was_trained_on(call, name, length):
    cfg = configured(*parse_modifier(call))(Experiment(model=family(name)))
    scalings = [node.scaling for _, node in cfg.walk() if isinstance(node, Rotary.Config)]
    assert scalings
    assert all(scaling.original_length == length for scaling in scalings)
    if call.startswith("rope-dynamic"):
        assert all(scaling.length == 3 * length for scaling in scalings)


def test_published_lengths_and_a_model_that_does_not_say():
    yarn = configured("rope-yarn", {})
    for model, length in {"llama2-7b": 4096, "llama3-8b": 8192, "qwen3-0.6b": 32_768, "gemma3-1b": 32_768}.items():
        cfg = yarn(Experiment(model=kn.component("models", model)()))
        assert {n.scaling.original_length for _, n in cfg.walk() if isinstance(n, Rotary.Config)} == {length}
    silent = Experiment(model=kn.component("models", "llama-tiny")())
    kn.replace(silent, target=Rotary, edit=lambda node: node.set(trained_length=None))
    with pytest.raises(ConfigError, match="rope-yarn: a rotary embedding under .* pass original_length=…"):
        yarn(silent)
