"""Rematerialisation policies: which tagged activations the backward pass keeps."""

from typing import Any

import jax
import sashimono as sm
from sashimono.contracts import RematPolicy, Stack


class FullRemat(RematPolicy):
    """Keeps each layer's input only and recomputes the rest."""

    @sm.nowrap
    def policy(self) -> Any:
        """Returns True."""
        return True


class SaveNames(RematPolicy):
    """Keeps the activations that layers tagged with these names, and recomputes the rest."""

    class Config(RematPolicy.Config):
        save: tuple[str, ...] = ("query", "key", "value", "attention_projection")

    @sm.nowrap
    def policy(self) -> Any:
        """Returns the policy over tag names."""
        return jax.checkpoint_policies.save_only_these_names(*self.config.save)


class SaveDots(RematPolicy):
    """Keeps the results of matmuls without batch dimensions, and recomputes the rest."""

    @sm.nowrap
    def policy(self) -> Any:
        """Returns JAX's policy of that meaning."""
        return jax.checkpoint_policies.dots_with_no_batch_dims_saveable


#: Names of policies for the `remat` modifier.
POLICIES = {
    "none": None,
    "full": FullRemat,
    "dots": SaveDots,
    "save_qkv_and_output": SaveNames,
}


class Remat(sm.Modifier):
    """`remat`: gives every stack a policy: none, full, dots or save_qkv_and_output."""

    class Config(sm.Modifier.Config):
        policy: str = "full"

        def check(self) -> list[str]:
            """Returns what is wrong with the policy's name."""
            if self.policy in POLICIES:
                return []
            return [f"policy is {self.policy!r}, expected one of {', '.join(POLICIES)}"]

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with the policy in every stack that has a `remat` slot."""
        kind = POLICIES[self.config.policy]
        new = None if kind is None else kind.Config()

        def put(node: sm.Config) -> None:
            if "remat" in node.fields():
                node.set(remat=new)

        sm.replace(cfg, target=Stack, edit=put)
        return cfg
