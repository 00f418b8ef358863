"""Gemma 4, text, dense (Google 2026, the released configs): normalised values, global layers with wider heads.

E2B and E4B have an input for each layer, and last layers without keys of their own; mixtures have no recipe yet.
"""

from typing import Any

from kanawa.contracts import ForeignFamily, Stack

from kanawa_layers.attention.key_sharing import OfferKeys, TakeKeys
from kanawa_layers.attention.value_norm import NormedValueAttention
from kanawa_layers.basic.embedding import Embedding
from kanawa_layers.basic.norms import RMSNorm, UnitRMSNorm
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.gated import GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.head import TiedHead
from kanawa_layers.positions.leading_frequencies import LeadingFrequencies
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.hf_config import (
    FULL,
    SLIDING,
    Foreign,
    activation,
    activation_name,
    expect,
    period_of,
    repeated,
    sizes,
)
from kanawa_layers.recipes.llama import sized
from kanawa_layers.stack.chained import ChainedStack
from kanawa_layers.stack.pattern import PatternStack
from kanawa_layers.stack.per_layer_inputs import PerLayerEmbedding, PerLayerInput, PerLayerStack, ScaledBlock

_USUAL = (SLIDING,) * 5 + (FULL,)
#: Tensors that released files have of layers which take their keys.
_UNUSED = tuple(f"{name}.weight" for name in ("k_proj", "v_proj", "k_norm"))


def gemma4(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_dim: int,
    head_dim: int = 256,
    global_head_dim: int = 512,
    global_kv_heads: int | None = None,
    keys_as_values: bool = False,
    num_sharing: int = 0,
    double_wide: bool = False,
    per_layer_dim: int | None = None,
    vocab_size: int = 262_144,
    window: int = 1024,
    kinds: tuple[str, ...] = _USUAL,
    norm_eps: float = 1e-6,
    logit_cap: float | None = 30.0,
    local_theta: float = 10_000.0,
    global_theta: float = 1_000_000.0,
    global_fraction: float = 0.25,
    trained_length: int | None = 131_072,
) -> DecoderLM.Config:
    """Returns a Gemma 4 of any size.

    The last `num_sharing` layers take the keys of the last layer of their kind before them, and have feed-forwards
    twice as wide if `double_wide`. `keys_as_values` is for global layers, which rotate `global_fraction` of the
    frequencies. With `per_layer_dim`, each layer reads an input of its own.
    """
    norm = RMSNorm.Config(eps=norm_eps)
    attention = NormedValueAttention.Config(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=window,
        scale=1.0,
        query_norm=norm,
        key_norm=norm,
        value_norm=UnitRMSNorm.Config(eps=norm_eps),
        positions=Rotary.Config(theta=local_theta, trained_length=trained_length),
    )
    # No trained length: frequencies of 0 have no period to compare it with.
    far = Rotary.Config(theta=global_theta, scaling=LeadingFrequencies.Config(fraction=global_fraction))
    wide = attention.clone(head_dim=global_head_dim, window=None, positions=far)
    if global_kv_heads is not None:
        wide.set(num_kv_heads=global_kv_heads)
    if keys_as_values:
        wide.set(value=None)
    block = ScaledBlock.Config(
        attention=attention,
        feed_forward=GatedFeedForward.Config(hidden_dim=hidden_dim, activation=gelu_tanh),
        attention_norm=norm,
        attention_output_norm=norm,
        feed_forward_norm=norm,
        feed_forward_output_norm=norm,
    )
    if per_layer_dim is not None:
        block.set(per_layer=PerLayerInput.Config(width=per_layer_dim, norm=norm))
    by_kind = {SLIDING: block, FULL: block.clone(attention=wide)}
    stack = _stack(by_kind, repeated(kinds, num_layers), num_sharing, hidden_dim * (2 if double_wide else 1))
    cfg = DecoderLM.Config(
        vocab_size=vocab_size,
        input_dim=input_dim,
        embedding=_embedding(num_layers, per_layer_dim, norm),
        stack=stack,
        norm=norm,
        head=TiedHead.Config(logit_cap=logit_cap),
    )
    if per_layer_dim is not None:
        cfg.foreign.set(children={**cfg.foreign.children, "embedding": "model"})
    return cfg


def _embedding(num_layers: int, per_layer_dim: int | None, norm: RMSNorm.Config) -> Embedding.Config:
    """Returns the scaled embedding, with the layers' table where they have inputs of their own."""
    if per_layer_dim is None:
        return Embedding.Config(scale_by_sqrt_dim=True)
    return PerLayerEmbedding.Config(scale_by_sqrt_dim=True, num_layers=num_layers, width=per_layer_dim, norm=norm)


def _stack(
    by_kind: dict[str, ScaledBlock.Config], kinds: list[str], num_sharing: int, sharing_dim: int
) -> Stack.Config:
    """Returns the layers: the last of each kind with keys of its own offers them to the `num_sharing` after it."""
    own, period = len(kinds) - num_sharing, len(period_of(kinds))

    def run(start: int, stop: int) -> PatternStack.Config:
        blocks = []
        for i in range(start, min(stop, start + period)):
            block = by_kind[kinds[i]].clone()
            if i >= own:
                block.attention.set(sharing=TakeKeys.Config(name=kinds[i]))
                block.attention.foreign.set(ignored=_UNUSED)
                block.feed_forward.set(hidden_dim=sharing_dim)
            elif num_sharing and stop == own and kinds[i] not in kinds[i + 1 : own]:
                block.attention.set(sharing=OfferKeys.Config(name=kinds[i]))
            blocks.append(block)
        shape: dict[str, Any] = {"num_layers": stop - start, "pattern": tuple(blocks)}
        has_inputs = blocks[0].per_layer is not None
        return PerLayerStack.Config(first_layer=start, **shape) if has_inputs else PatternStack.Config(**shape)

    if not num_sharing:
        return run(0, own)
    # What is offered leaves a loop of one repeat only, so the layers that offer have a stack of their own.
    cuts = [max(own - period, 0), own, len(kinds)]
    return ChainedStack.Config(stacks=tuple(run(a, b) for a, b in zip([0, *cuts], cuts, strict=False) if b > a))


def _blocks(stack: Any) -> list[Any]:
    """Returns one block a layer."""
    parts = stack.stacks if isinstance(stack, ChainedStack.Config) else (stack,)
    return [block for part in parts for block in repeated(part.pattern, part.num_layers)]


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `gemma4_text` config.json."""
    expect(config, attention_bias=False, tie_word_embeddings=True, enable_moe_block=False)
    expect(config, use_bidirectional_attention=None)
    if config.get("hidden_size_per_layer_input"):
        expect(config, vocab_size_per_layer_input=config["vocab_size"])
    kinds = config.get("layer_types") or repeated(_USUAL, config["num_hidden_layers"] - 1) + [FULL]
    rope = config.get("rope_parameters") or {}
    near, far = rope.get(SLIDING, {}), rope.get(FULL, {})
    if near.get("rope_type", "default") != "default":
        expect({"model_type": config["model_type"], **near}, rope_type="default")
    expect({"model_type": config["model_type"], **far}, rope_type="proportional", factor=1.0)
    # Older configs name what differs in global layers, newer ones list it by layer.
    listed = (config.get("per_layer_config") or {}).get(str(list(kinds).index(FULL)), {})
    same = config.get("attention_k_eq_v", False)
    shape = sizes(config)
    cfg = gemma4(
        **{**shape, "head_dim": config.get("head_dim", 256)},
        global_head_dim=listed.get("head_dim", config.get("global_head_dim") or 512),
        global_kv_heads=listed.get("num_key_value_heads", config.get("num_global_key_value_heads") if same else None),
        keys_as_values=same,
        num_sharing=config.get("num_kv_shared_layers", 0),
        double_wide=config.get("use_double_wide_mlp", False),
        per_layer_dim=config.get("hidden_size_per_layer_input") or None,
        window=config["sliding_window"],
        kinds=tuple(kinds),
        logit_cap=config.get("final_logit_softcapping"),
        local_theta=float(near.get("rope_theta", 10_000.0)),
        global_theta=float(far.get("rope_theta", 1_000_000.0)),
        global_fraction=far.get("partial_rotary_factor", 0.25),
        trained_length=config.get("max_position_embeddings"),
    )
    act = activation(config.get("hidden_activation", "gelu_pytorch_tanh"))
    for _, node in cfg.walk():
        if isinstance(node, GatedFeedForward.Config | PerLayerInput.Config):
            node.set(activation=act)
    return cfg


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    blocks = _blocks(cfg.stack)
    kinds = [FULL if block.attention.window is None else SLIDING for block in blocks]
    local, wide = (blocks[kinds.index(kind)].attention for kind in (SLIDING, FULL))
    sharing = [isinstance(block.attention.sharing, TakeKeys.Config) for block in blocks]
    widths = [block.feed_forward.hidden_dim for block in blocks]
    per_layer = blocks[0].per_layer
    keys = {
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": len(blocks),
        "hidden_size": cfg.input_dim,
        "intermediate_size": widths[0],
        "vocab_size": cfg.vocab_size,
        "rms_norm_eps": cfg.norm.eps,
        "hidden_activation": activation_name(blocks[0].feed_forward.activation, "gelu_pytorch_tanh"),
        "num_attention_heads": local.num_heads,
        "num_key_value_heads": local.num_kv_heads,
        "head_dim": local.head_dim,
        "global_head_dim": wide.head_dim,
        "attention_k_eq_v": wide.value is None,
        "num_kv_shared_layers": sum(sharing),
        "use_double_wide_mlp": any(sharing) and widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": 0 if per_layer is None else per_layer.width,
        "vocab_size_per_layer_input": cfg.vocab_size,
        "sliding_window": local.window,
        "layer_types": kinds,
        "final_logit_softcapping": cfg.head.logit_cap,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": local.positions.theta},
            FULL: {
                "rope_type": "proportional",
                "rope_theta": wide.positions.theta,
                "partial_rotary_factor": wide.positions.scaling.fraction,
            },
        },
        "tie_word_embeddings": True,
    }
    if wide.num_kv_heads != local.num_kv_heads:
        keys["num_global_key_value_heads"] = wide.num_kv_heads
    if local.positions.trained_length is not None:
        keys["max_position_embeddings"] = local.positions.trained_length
    return keys


FAMILY = ForeignFamily(from_hf, to_hf)

_SMALL: dict[str, Any] = {"per_layer_dim": 256, "window": 512}
#: The text model of Gemma 4 E2B: 4,628,569,344 parameters, of which 2,348,810,240 are the layers' own table.
gemma4_e2b = sized(
    gemma4, 35, 1536, 8, 1, 6144, **_SMALL, num_sharing=20, double_wide=True, kinds=(SLIDING,) * 4 + (FULL,)
)
#: The text model of Gemma 4 E4B: 7,463,013,376 parameters, of which 2,818,572,288 are the layers' own table.
gemma4_e4b = sized(gemma4, 42, 2560, 8, 2, 10_240, **_SMALL, num_sharing=18)
#: The text model of Gemma 4 31B: 30,697,345,280 parameters.
gemma4_31b = sized(gemma4, 60, 5376, 32, 16, 21_504, global_kv_heads=4, keys_as_values=True, trained_length=262_144)
