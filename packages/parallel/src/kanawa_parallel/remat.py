"""Rematerialisation policies: which tagged activations the backward pass keeps."""

from typing import Any

import jax
import kanawa as kn
from kanawa.contracts import RematPolicy, Stack


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
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            jax.checkpoint_policies.save_only_these_names("attention_out", "attention_residuals"),
        )


class OffloadNames(RematPolicy):
    """Sends the activations tagged with `offload` to pinned host memory until the backward pass, and keeps those of
    `save`; the rest is recomputed. The CPU backend, TPUs and NVIDIA GPUs have that memory.
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
        return jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")


#: What a layer of attention and gated feed-forward computes by matmuls, queries and keys after they were turned, and
#: what a fused attention needs for its gradient: with these kept, only elementwise work is done again.
PROJECTIONS = (
    *("query", "key", "value", "attention_out", "attention_residuals", "attention_projection"),
    *("feed_forward_gate", "feed_forward_up"),
)
#: Names of policies for the `remat` modifier.
POLICIES: dict[str, RematPolicy.Config | None] = {
    "none": None,
    "full": FullRemat.Config(),
    "dots": SaveDots.Config(),
    "save_qkv_and_output": SaveNames.Config(),
    "save_projections": SaveNames.Config(save=PROJECTIONS),
    "save_attention_and_gate": SaveNames.Config(save=tuple(n for n in PROJECTIONS if n != "feed_forward_up")),
    "save_qkv_offload_input": OffloadNames.Config(save=("query", "key", "value"), offload=("layer_input",)),
    "offload_input": OffloadNames.Config(offload=("layer_input",)),
    "offload_qkv_and_output": OffloadNames.Config(),
    "offload_qkv_and_input": OffloadNames.Config(offload=("query", "key", "value", "layer_input")),
    "offload_dots": OffloadDots.Config(),
}


class Remat(kn.Modifier):
    """`remat`: gives every stack a policy by name, such as full, dots or save_qkv_and_output."""

    class Config(kn.Modifier.Config):
        policy: str = "full"

        def check(self) -> list[str]:
            """Returns what is wrong with the policy's name."""
            if self.policy in POLICIES:
                return []
            return [f"policy is {self.policy!r}, expected one of {', '.join(POLICIES)}"]

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the policy in every stack that has a `remat` slot."""
        new = POLICIES[self.config.policy]

        def put(node: kn.Config) -> None:
            if "remat" in node.fields():
                node.set(remat=new)

        kn.replace(cfg, target=Stack, edit=put)
        return cfg
