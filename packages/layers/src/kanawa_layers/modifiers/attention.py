"""Modifiers of attention layers: window, scores, heads, mask, sinks, gate, norms, biases, fused projections."""

from typing import Any

import kanawa as kn
from kanawa.contracts import Norm, SequenceMixer
from kanawa.errors import ConfigError

from kanawa_layers.attention.masks import Causal, Mask
from kanawa_layers.attention.slots import ElementwiseGate, LearnedSinks, OutputGate
from kanawa_layers.basic.norms import RMSNorm
from kanawa_layers.modifiers.fields import SetFields, edit_with

# Of latent attention the projections down alone, as in DeepSeek: a bias in kv_up could not be absorbed into queries.
_INPUTS = ("query", "key", "value", "qkv", "query_down", "kv_down")


class SlidingWindow(SetFields):
    """`window`: narrows causal attention to the last `size` keys, the query's own included; None removes the window."""

    class Config(SetFields.Config):
        size: kn.Size | None = 4096

    def values(self) -> dict[str, Any]:
        """Returns the window."""
        return {"window": self.config.size}


class SoftCap(SetFields):
    """`soft-cap`: scores become cap * tanh(scores / cap), as in Gemma 2; None removes it."""

    class Config(SetFields.Config):
        cap: kn.Positive | None = 50.0

    def values(self) -> dict[str, Any]:
        """Returns the cap."""
        return {"logit_cap": self.config.cap}


class KeyValueHeads(SetFields):
    """`kv-heads`: sets the number of key and value heads: 1 is multi-query, None multi-head attention."""

    class Config(SetFields.Config):
        count: kn.Size | None = 1

    def values(self) -> dict[str, Any]:
        """Returns the count; the layer checks whether it divides the query heads."""
        return {"num_kv_heads": self.config.count}


class AttentionMask(SetFields):
    """`attention-mask`: sets the mask of every attention that has one."""

    class Config(SetFields.Config):
        mask: Mask.Config = Causal.Config()

    def values(self) -> dict[str, Any]:
        """Returns the mask."""
        return {"mask": self.config.mask}


class AttentionSinks(SetFields):
    """`sinks`: sets learned sinks in every attention that supports them, as in gpt-oss."""

    def values(self) -> dict[str, Any]:
        """Returns the sinks."""
        return {"sinks": LearnedSinks.Config()}


class AttentionGate(SetFields):
    """`attention-gate`: multiplies the heads' outputs by `gate` in every attention that supports it."""

    class Config(SetFields.Config):
        gate: OutputGate.Config = ElementwiseGate.Config()

    def values(self) -> dict[str, Any]:
        """Returns the gate."""
        return {"gate": self.config.gate}


class QKNorm(SetFields):
    """`qk-norm`: normalises each head's queries and keys, as in Qwen 3; `all_heads`: all at once, as in OLMo 2.

    Dehghani et al. 2023, arXiv:2302.05442.
    """

    class Config(SetFields.Config):
        norm: Norm.Config = RMSNorm.Config()
        all_heads: bool = False

    def values(self) -> dict[str, Any]:
        """Returns both norms."""
        own = self.config
        return {"query_norm": own.norm, "key_norm": own.norm, "norm_all_heads": own.all_heads}


class AttentionBias(kn.Modifier):
    """`attention-bias`: sets biases of projections into attention (`inputs`) and out of it (`output`)."""

    class Config(kn.Modifier.Config):
        inputs: bool = True
        output: bool = False
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the biases set; raises ConfigError where no attention has such projections."""
        wanted = {**dict.fromkeys(_INPUTS, self.config.inputs), "output": self.config.output}
        reached: list[str] = []

        def edit(node: Any) -> None:
            for name, bias in wanted.items():
                projection = getattr(node, name, None)
                if isinstance(projection, kn.Config) and "bias" in projection.fields():
                    projection.set(bias=bias)
                    reached.append(name)

        kn.replace(cfg, target=SequenceMixer, edit=edit, where=self.config.where)
        if not reached:
            message = f"no attention under {self.config.where!r} has a projection named {', '.join(wanted)} with a bias"
            raise ConfigError(message)
        return cfg


class FusedQKV(kn.Modifier):
    """`fused-qkv`: one projection for queries, keys and values; its weight is laid out by key heads.

    It has the bias, form and adapter of the query's projection; `bias` overrides the first.
    """

    class Config(kn.Modifier.Config):
        bias: bool | None = None
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with fused projections; raises ConfigError where no attention supports it."""
        bias = self.config.bias

        def fuse(node: Any) -> None:
            fused = node.query.clone()
            node.set(qkv=fused if bias is None else fused.set(bias=bias))

        return edit_with(cfg, SequenceMixer, self.config.where, ("qkv",), fuse)
