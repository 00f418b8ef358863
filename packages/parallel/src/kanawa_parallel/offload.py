"""Optimizer state in host memory: two thirds of a training state leave the devices between steps (ZeRO-Offload)."""

import kanawa as kn


class OffloadOptimizer(kn.Modifier):
    """`offload-optimizer`: keeps optimizer state in pinned host memory; each step fetches it and sends it back.

    On a platform without that memory kind, placing or compiling fails and names it.
    """

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with `execution.optimizer_memory` set."""
        cfg.execution.set(optimizer_memory="pinned_host")
        return cfg
