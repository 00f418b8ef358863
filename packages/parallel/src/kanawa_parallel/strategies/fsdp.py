"""Fully sharded data parallelism (ZeRO-3; Rajbhandari et al. 2019, arXiv:1910.02054)."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy

from kanawa_parallel.rules import BATCH


class FSDP(Strategy):
    """Shards parameters, gradients and optimizer state over `fsdp`, and the batch over it too.

    Each parameter is sharded on its widest role: the model width first, then whatever else it has and the axis divides;
    a small one that has nothing of the kind stays whole. With a `replica` or `data` axis every replica holds one copy
    in shards: hybrid sharding (HSDP).
    """

    def param_rules(self) -> Rules:
        """Returns the order in which a parameter's axes are tried."""
        tried = ("embed", "mlp", "vocab", "heads", "head_dim")
        return tuple((axis, ("fsdp",)) for axis in tried)

    def activation_rules(self) -> Rules:
        """Returns the batch's axes, outermost first, as one rule: every data-like axis splits the batch."""
        return BATCH
