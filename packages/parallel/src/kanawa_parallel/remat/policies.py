"""Rematerialisation policies: which tagged activations the backward pass keeps, and those that have a name.

Names are entry points of the group `kanawa.remat`, to a policy or to a function that returns the config of one.
"""

from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import RematPolicy
from kanawa.kernels.matmul import is_matmul

#: Dimension numbers of a matmul of two matrices.
_MATRICES = (((1,), (0,)), ((), ()))


def _of_matmuls(policy: Any) -> Any:
    """Returns a policy over `dot_general` that treats a matmul by a chosen kernel as it treats the others."""

    def extended(primitive: Any, *operands: Any, **parameters: Any) -> Any:
        if is_matmul(primitive):
            return policy(jax.lax.dot_general_p, *operands, dimension_numbers=_MATRICES)
        return policy(primitive, *operands, **parameters)

    return extended


class KeepAll(RematPolicy):
    """Keeps every activation: nothing is recomputed."""

    @kn.nowrap
    def policy(self) -> Any:
        """Returns False."""
        return False


class FullRemat(RematPolicy):
    """Keeps each layer's input only and recomputes the rest."""

    @kn.nowrap
    def policy(self) -> Any:
        """Returns True."""
        return True


class SaveNames(RematPolicy):
    """Keeps the activations that layers tagged with these names, and recomputes the rest."""

    class Config(RematPolicy.Config):
        save: tuple[str, ...] = ("query", "key", "value", "attention_projection")

    @kn.nowrap
    def policy(self) -> Any:
        """Returns the policy over tag names."""
        return jax.checkpoint_policies.save_only_these_names(*self.config.save)


class SaveDots(RematPolicy):
    """Keeps the results of matmuls without batch dimensions, and recomputes the rest."""

    @kn.nowrap
    def policy(self) -> Any:
        """Returns JAX's policy of that meaning."""
        return jax.checkpoint_policies.save_from_both_policies(
            _of_matmuls(jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
            jax.checkpoint_policies.save_only_these_names("attention_out", "attention_residuals"),
        )


class OffloadNames(RematPolicy):
    """Sends the activations tagged with `offload` to pinned host memory until the backward pass, and keeps those of
    `save`; the rest is recomputed. Not every platform has that memory.
    """

    class Config(RematPolicy.Config):
        save: tuple[str, ...] = ()
        offload: tuple[str, ...] = ("query", "key", "value", "attention_projection")

        def check(self) -> list[str]:
            """Returns which names are both kept and sent away."""
            both = sorted(set(self.save) & set(self.offload))
            return [f"{name!r} is in save and in offload" for name in both]

    @kn.nowrap
    def policy(self) -> Any:
        """Returns the policy over tag names."""
        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.config.save),
            names_which_can_be_offloaded=list(self.config.offload),
            offload_src="device",
            offload_dst="pinned_host",
        )


class OffloadDots(RematPolicy):
    """Sends the results of matmuls without batch dimensions to pinned host memory, and recomputes the rest."""

    @kn.nowrap
    def policy(self) -> Any:
        """Returns JAX's policy of that meaning."""
        return _of_matmuls(jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"))


#: What a layer of attention and gated feed-forward computes by matmuls, queries and keys after they were turned, and
#: what a fused attention needs for its gradient: with these saved, only elementwise work is done again.
PROJECTIONS = (
    *("query", "key", "value", "attention_out", "attention_residuals", "attention_projection"),
    *("feed_forward_gate", "feed_forward_up"),
)


def save_qkv_and_output() -> SaveNames.Config:
    """Keeps query, key, value and the attention's projection."""
    return SaveNames.Config()


def save_projections() -> SaveNames.Config:
    """Keeps what matmuls and attention computed: only elementwise work is done again."""
    return SaveNames.Config(save=PROJECTIONS)


def save_attention_and_gate() -> SaveNames.Config:
    """Keeps the same without the feed-forward's second projection, for models where that is too much."""
    # As large as the gate's result, and a single matmul of the norm's output away.
    return SaveNames.Config(save=tuple(name for name in PROJECTIONS if name != "feed_forward_up"))


def save_qkv_offload_input() -> OffloadNames.Config:
    """Keeps query, key and value, and sends each layer's input to host memory."""
    return OffloadNames.Config(save=("query", "key", "value"), offload=("layer_input",))


def offload_input() -> OffloadNames.Config:
    """Sends each layer's input to host memory and recomputes the rest: the least that devices can hold."""
    return OffloadNames.Config(offload=("layer_input",))


def offload_qkv_and_output() -> OffloadNames.Config:
    """Sends query, key, value and the attention's projection to host memory."""
    return OffloadNames.Config()


def offload_qkv_and_input() -> OffloadNames.Config:
    """Sends query, key, value and each layer's input to host memory."""
    return OffloadNames.Config(offload=("query", "key", "value", "layer_input"))
