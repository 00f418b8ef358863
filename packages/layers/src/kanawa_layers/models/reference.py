"""Where a preference loss gets its reference policy: the same weights without adapters, or a frozen model."""

import abc
from collections.abc import Mapping
from typing import Any

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Batch, CausalLM, Companion, Weighted
from kanawa.errors import ModuleError
from kanawa.module import Outputs

from kanawa_layers.models.head import Head
from kanawa_layers.models.target_nll import target_nll
from kanawa_layers.models.token_loss import TokenLoss


class TokenLogprobs(TokenLoss):
    """No loss: emits `logprobs`, those of the targets, fp32 [batch, length]."""

    class Config(TokenLoss.Config):
        pass

    def forward(self, x: Float[Array, "B T E"], head: Head, batch: Batch) -> None:
        """Emits the log-probabilities."""
        self.emit("logprobs", target_logprobs(x, head, batch))


def target_logprobs(x: Float[Array, "B T E"], head: Head, batch: Any) -> Float[Array, "B T"]:
    """Returns log p of each target by the head's logits of `x`, fp32, without all logits in memory."""
    return -target_nll(head.scaled(x), head.weight(), batch.target_ids, head.tied, head.config.logit_cap)


class Reference(kn.Module):
    """A policy that isn't trained, asked for the log-probabilities of a batch's targets."""

    @abc.abstractmethod
    def forward(self, batch: Any) -> Float[Array, "B T"]:
        """Returns them, fp32; no gradient reaches the reference, and nothing random happens in it."""


class AdapterOff(Reference):
    """The model around this loss without its adapters: no second copy of any weight, and no work for adapters.

    Adapters that were loaded before training are left out as well: the reference is the base model.
    """

    def setup(self) -> None:
        """Builds the model without adapters, whose parameters are some of the trained model's."""
        node = self.parent
        while node is not None and not isinstance(node, CausalLM):
            node = node.parent
        if node is None:
            message = f"{self.path} is in no causal language model, whose adapters could be left out"
            raise ModuleError(message)
        cfg: Any = without_adapters(node.config)
        self.around = node
        self.is_policy = bool(cfg == node.config)
        self.plain: CausalLM = cfg.set(loss=TokenLogprobs.Config()).build()

    def forward(self, batch: Any) -> Float[Array, "B T"]:
        """Returns the base model's log-probabilities; raises ModuleError without adapters, or in a pipeline."""
        if self.is_policy:
            message = (
                f"{self.path}: the model has no adapter, so without them it would be the policy itself; put --modify "
                "lora before, or take a frozen copy with reference=frozen"
            )
            raise ModuleError(message)
        context: Any = kn.current_context()
        while context is not None and context.module is not self.around:
            context = context.parent
        if context is None or "stack" not in context.params:
            message = (
                f"{self.path}: a pipeline's stages don't hold the whole model that the reference needs; take "
                "reference=precomputed, or no pipeline"
            )
            raise ModuleError(message)
        return _logprobs(self.plain, context.params, context.current_state(), batch)


class FrozenModel(Companion, Reference):
    """A model of its own that is never trained: a copy of the policy as it was, or what `source` holds."""

    class Config(Companion.Config, Reference.Config):
        pass

    def forward(self, batch: Any) -> Float[Array, "B T"]:
        """Returns the frozen model's log-probabilities; its `loss` has to be TokenLogprobs."""
        context: Any = kn.current_context()
        return _logprobs(self.model, context.params["model"], context.state.get("model", {}), batch)


def without_adapters(cfg: kn.Config) -> kn.Config:
    """Returns a copy without adapters; weights keep their forms, since those are what is stored."""

    def clear(node: kn.Config) -> None:
        if "adapter" in node.fields():
            node.set(adapter=None)

    cfg = cfg.clone()
    kn.replace(cfg, target=Weighted, edit=clear, allow_none=True)
    return cfg


def _logprobs(model: CausalLM, params: Mapping[str, Any], state: Any, batch: Any) -> Float[Array, "B T"]:
    """Returns what `model`, built apart or below, makes of the batch; its kernels join the running call's."""
    fixed = jax.lax.stop_gradient(params)
    # By name: records of pairs have fields of their own after these.
    names = ("input_ids", "target_ids", "positions", "segment_ids", "loss_weights")
    plain = Batch(**{name: getattr(batch, name) for name in names})
    _, outputs = kn.functional(model)(fixed, state, plain, train=False, emit=("loss.logprobs",))
    kn.current_context().collector.absorb(Outputs(kernels=outputs.kernels))
    values: jax.Array
    (values,) = outputs.emitted.values()
    return jax.lax.stop_gradient(values)
