"""Llama 4 Scout and Maverick, text (Meta 2025, the released configs): chunked layers with RoPE, global ones without.

Experts see inputs weighed by a sigmoid, one expert a token and a shared one; Maverick alternates with dense layers.
"""

from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Causal, Chunked
from kanawa_layers.attention.slots import TemperatureTuning
from kanawa_layers.basic.norms import RMSNorm, UnitRMSNorm
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead, UntiedHead
from kanawa_layers.moe.experts import GatedExperts
from kanawa_layers.moe.mixture import MixtureOfExperts
from kanawa_layers.moe.router import Sigmoid, TopKRouter
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.positions.frequency_scaling import Llama3Scaling
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import Foreign, expect, period_of, repeated, rope_keys, rotary, size_keys, sizes
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.residual_blocks import PreNormBlock

# [experts, in, out], where torch's Linear is [out, in].
_IN_OUT = kn.foreign.Matrix.Config(transposed=False)
_EXPERTS = kn.foreign.Names(
    tensors={
        "gate": kn.foreign.Tensor(form=_IN_OUT),
        "up": kn.foreign.Tensor(form=_IN_OUT),
        "down": kn.foreign.Tensor(name="down_proj", form=_IN_OUT),
    },
    joined=(kn.foreign.Joined(name="gate_up_proj", parts=("gate", "up"), axis=-1),),
)
#: For each layer of the pattern: whether it has RoPE (and chunks), and whether it is a mixture.
Kinds = tuple[tuple[bool, bool], ...]


def llama4(
    *,
    num_layers: int = 48,
    input_dim: int = 5120,
    num_heads: int = 40,
    num_kv_heads: int = 8,
    head_dim: int | None = None,
    expert_dim: int = 8192,
    hidden_dim: int = 16_384,
    vocab_size: int = 202_048,
    num_experts: int,
    kinds: Kinds,
    chunk: int = 8192,
    query_key_norm: bool = True,
    tuning: TemperatureTuning.Config | None = None,
    norm_eps: float = 1e-5,
    tied: bool = False,
    positions: Rotary.Config | None = None,
) -> DecoderLM.Config:
    """Returns a Llama 4 of any size; `tuning` sharpens the layers without RoPE at far positions."""
    norm = RMSNorm.Config(eps=norm_eps)
    unit = UnitRMSNorm.Config(eps=norm_eps) if query_key_norm else None
    heads: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    # Meta's code normalises queries and keys after the rotation; a norm without scale commutes with it.
    near = GroupedQueryAttention.Config(
        **heads,
        mask=Chunked.Config(size=chunk),
        positions=positions or Rotary.Config(theta=500_000.0, interleaved=True, trained_length=262_144),
        query_norm=unit,
        key_norm=unit,
    )
    far = GroupedQueryAttention.Config(
        **heads, mask=Causal.Config(), positions=NoPositions.Config(), query_scale=tuning
    )
    dense = GatedFeedForward.Config(hidden_dim=hidden_dim, activation=jax.nn.silu)
    pattern = tuple(_block(near if rope else far, _mixture(expert_dim, num_experts) if sparse else dense, norm)
                    for rope, sparse in kinds)  # fmt: skip
    return DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        stack=PatternStack.Config(num_layers=num_layers, pattern=pattern),
        norm=norm,
        head=TiedHead.Config() if tied else UntiedHead.Config(),
    )


def _block(attention: GroupedQueryAttention.Config, feed_forward: Any, norm: RMSNorm.Config) -> PreNormBlock.Config:
    block = PreNormBlock.Config(
        attention=attention, feed_forward=feed_forward, attention_norm=norm, feed_forward_norm=norm
    )
    block.foreign.children["feed_forward"] = "feed_forward"
    return block


def _mixture(expert_dim: int, num_experts: int) -> MixtureOfExperts.Config:
    """Returns a mixture in which a token uses one expert and the shared one."""
    mixture = MixtureOfExperts.Config(
        hidden_dim=expert_dim,
        num_experts=num_experts,
        # Normalised, the one weight would always be 1, and the router would learn nothing.
        router=TopKRouter.Config(top_k=1, scoring=Sigmoid.Config(), normalise_weights=False),
        experts=GatedExperts.Config(activation=jax.nn.silu, foreign=_EXPERTS),
        shared=GatedFeedForward.Config(hidden_dim=expert_dim, activation=jax.nn.silu),
        weigh_inputs=True,
    )
    mixture.foreign.children.update(router="router", shared="shared_expert")
    return mixture


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `llama4_text` config.json."""
    expect(config, attention_bias=False, hidden_act="silu", num_experts_per_tok=1)
    shape, count = sizes(config), config["num_hidden_layers"]
    step, interval = config.get("interleave_moe_layer_step", 1), config.get("no_rope_layer_interval", 4)
    mixtures = config.get("moe_layers")
    mixtures = range(step - 1, count, step) if mixtures is None else mixtures
    # In spite of the name, a 1 in `no_rope_layers` says that the layer has RoPE.
    rope = config.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(count)]
    tuning = None
    if config.get("attn_temperature_tuning", True):
        floor = config.get("floor_scale", 8192)
        tuning = TemperatureTuning.Config(coefficient=config.get("attn_scale", 0.1), floor_scale=float(floor))
    return llama4(
        # Here `intermediate_size` is an expert's, and dense layers have their own key.
        **{**shape, "hidden_dim": config["intermediate_size_mlp"]},
        expert_dim=config["intermediate_size"],
        num_experts=config["num_local_experts"],
        kinds=period_of([(bool(rope[i]), i in mixtures) for i in range(count)]),
        chunk=config.get("attention_chunk_size", 8192),
        query_key_norm=config.get("use_qk_norm", True),
        tuning=tuning,
        tied=config.get("tie_word_embeddings", False),
        positions=rotary({"rope_theta": 500_000.0, **config}, interleaved=True),
    )


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks, count = cfg.stack.pattern, cfg.stack.num_layers
    near = next(block.attention for block in blocks if isinstance(block.attention.mask, Chunked.Config))
    far = [block.attention for block in blocks if not isinstance(block.attention.mask, Chunked.Config)]
    mixture = next(b.feed_forward for b in blocks if isinstance(b.feed_forward, MixtureOfExperts.Config))
    dense = [b.feed_forward.hidden_dim for b in blocks if isinstance(b.feed_forward, GatedFeedForward.Config)]
    rope = [int(isinstance(block.attention.mask, Chunked.Config)) for block in blocks]
    sparse = [isinstance(block.feed_forward, MixtureOfExperts.Config) for block in blocks]
    tuning = far[0].query_scale if far else None
    tuned = {} if tuning is None else {"attn_scale": tuning.coefficient, "floor_scale": int(tuning.floor_scale)}
    return {
        "architectures": ["Llama4ForCausalLM"],
        **size_keys(cfg, near, mixture.hidden_dim),
        "intermediate_size_mlp": dense[0] if dense else 2 * mixture.hidden_dim,
        **rope_keys(near.positions),
        "num_local_experts": mixture.num_experts,
        "num_experts_per_tok": 1,
        "moe_layers": [i for i, is_sparse in enumerate(repeated(sparse, count)) if is_sparse],
        "no_rope_layers": repeated(rope, count),
        "attention_chunk_size": near.mask.size,
        "use_qk_norm": near.query_norm is not None,
        "attn_temperature_tuning": tuning is not None,
        **tuned,
        "tie_word_embeddings": isinstance(cfg.head, TiedHead.Config),
    }


FAMILY = ForeignFamily(from_hf, to_hf)

_TUNING = TemperatureTuning.Config(coefficient=0.1, floor_scale=8192.0)


def llama4_scout() -> DecoderLM.Config:
    """Returns the text model of Llama 4 Scout, 17B active of 16 experts: 107,769,861,120 parameters."""
    scaling = Llama3Scaling.Config(factor=16.0, low_frequency_factor=1.0, high_frequency_factor=1.0)
    kinds = ((True, True),) * 3 + ((False, True),)
    positions = Rotary.Config(theta=500_000.0, interleaved=True, scaling=scaling)
    return llama4(num_experts=16, kinds=kinds, tuning=_TUNING, positions=positions)


def llama4_maverick() -> DecoderLM.Config:
    """Returns the text model of Llama 4 Maverick, 17B active of 128 experts: 400,711,848,960 parameters."""
    kinds = ((True, False), (True, True), (True, False), (False, True))
    return llama4(num_experts=128, kinds=kinds, tuning=_TUNING, query_key_norm=False)
