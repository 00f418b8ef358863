"""Output heads: a weight of their own, or the embedding table again."""

import abc
from collections.abc import Mapping
from typing import Annotated, Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Fusable, Labels
from kanawa.kernels.matmul import matmul

from kanawa_layers.basic.embedding import Embedding


class Head(kn.Module):
    """Maps the last residual stream to logits; `weight` and `tied` let the loss avoid building them all.

    Logits are multiplied by `logit_scale` and then, with `logit_cap` c, become c * tanh(logits / c) (Gemma 2,
    arXiv:2408.00118, section 2).
    """

    class Config(kn.Module.Config):
        input_dim: kn.Size = kn.FROM_PARENT
        vocab_size: kn.Size = kn.FROM_PARENT
        logit_scale: Annotated[kn.Finite, kn.Usual()] = 1.0
        logit_cap: kn.Positive | None = None

    #: Whether `weight` is [vocab, embed], as a table is, rather than [embed, vocab].
    tied: bool = False

    @abc.abstractmethod
    def weight(self) -> Float[Array, "..."]:
        """Returns the projection in the compute dtype."""

    @kn.nowrap
    def scaled(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Returns hidden states times `logit_scale`: what the weight and then the cap apply to."""
        scale = self.config.logit_scale
        return x if scale == 1.0 else x * jnp.asarray(scale, x.dtype)

    @kn.nowrap
    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits of hidden states, scaled and capped: those that `predict` returns and a loss may take."""
        weight, cap = self.weight(), self.config.logit_cap
        # In fp32 whatever the weights are: a cap or a softmax over 100,000 logits shows bfloat16 steps.
        logits = matmul(self.scaled(x), weight, outputs_first=self.tied, dtype=jnp.float32, logits=True)
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return float(2.0 * self.config.input_dim * self.config.vocab_size)


class UntiedHead(Head, Fusable):
    """A projection of its own."""

    class Config(Head.Config, Fusable.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"kernel": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config())}
        )

    def setup(self) -> None:
        """Declares the weight, [embed, vocab]."""
        cfg = self.config
        # Not "weight" as elsewhere: that is the method which losses ask, whether the head is tied or not.
        self.add_param("kernel", (cfg.input_dim, cfg.vocab_size), axes=("embed", "vocab"))

    def weight(self) -> Float[Array, "E V"]:
        """Returns the projection."""
        return self.param("kernel")

    @classmethod
    def fused_config(cls, cfg: "UntiedHead.Config") -> "OutputFirstHead.Config | None":
        """Returns the config of the head with its weight transposed."""
        fields = {name: getattr(cfg, name) for name in ("input_dim", "vocab_size", "logit_scale", "logit_cap")}
        return OutputFirstHead.Config(**fields) if cls is UntiedHead else None

    @kn.nowrap
    def fuse(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the transposed kernel in place of the kernel."""
        return {"kernel": jnp.swapaxes(params["kernel"], -1, -2)}


class OutputFirstHead(Head):
    """An `UntiedHead` with its weight as [vocab, embed], which engines' steps of few rows read contiguously."""

    class Config(Head.Config):
        pass

    tied = True

    def setup(self) -> None:
        """Declares the weight, [vocab, embed]."""
        cfg = self.config
        self.add_param(
            "kernel", (cfg.vocab_size, cfg.input_dim), axes=("vocab", "embed"), fan_in_axes=(1,), fan_out_axes=(0,)
        )

    def weight(self) -> Float[Array, "V E"]:
        """Returns the projection."""
        return self.param("kernel")


class TiedHead(Head):
    """The embedding table, shared by the model (Press and Wolf 2017, arXiv:1608.05859)."""

    class Config(Head.Config):
        foreign: kn.foreign.Names = kn.foreign.Names(repeats={"weight": "embedding.weight"})

    tied = True

    def weight(self) -> Float[Array, "V E"]:
        """Returns the shared table."""
        embedding: Embedding = self.shared_module("embedding")
        return embedding.table()


class LabelHead(Head):
    """A projection to one logit for each of `labels`, a token; a text's are those of its first or its last token.

    The bias is an extra row of the weight, and the stream gets an extra column of ones, so that losses are unchanged.
    `of_tokens` says that each token has a label.
    """

    class Config(Head.Config):
        labels: tuple[str, ...] = kn.REQUIRED
        of_tokens: bool = False
        bias: bool = True
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"kernel": kn.foreign.Tensor(name="weight", form=kn.foreign.Matrix.Config()), "bias": "bias"}
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the labels."""
            if not self.labels or len(set(self.labels)) < len(self.labels):
                return [f"labels is {self.labels}, expected at least one name, each once"]
            return []

    def setup(self) -> None:
        """Declares the weight, [embed, labels], and the bias."""
        cfg = self.config
        count = len(cfg.labels)
        self.add_param("kernel", (cfg.input_dim, count), axes=("embed", None), init=kn.normal(0.02))
        if cfg.bias:
            self.add_param("bias", (count,), axes=(None,), init=kn.zeros, weight_decay=0.0)

    def weight(self) -> Float[Array, "E1 L"]:
        """Returns the projection with the bias as its last row."""
        kernel = self.param("kernel")
        return jnp.concatenate([kernel, self.param("bias")[None]]) if self.config.bias else kernel

    @kn.nowrap
    def scaled(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E1"]:
        """Returns hidden states, scaled, with a last column of ones for the bias."""
        x = super().scaled(x)
        return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1) if self.config.bias else x

    @kn.nowrap
    def flops_per_token(self, context_length: float) -> float:
        """Returns two FLOPs a weight."""
        del context_length
        return float(2.0 * self.config.input_dim * len(self.config.labels))


def labels_of_head(head: Head.Config | None, *, first: bool) -> Labels | None:
    """Returns the labels that a head tells apart, None without; a text's are at its `first` token, or at its last."""
    if not isinstance(head, LabelHead.Config):
        return None
    return Labels(head.labels, "tokens" if head.of_tokens else "first" if first else "last")
