"""Fully sharded data parallelism (ZeRO-3; Rajbhandari et al. 2019, arXiv:1910.02054)."""

from sashimono.arrays.rules import Rules
from sashimono.contracts import Strategy


class FSDP(Strategy):
    """Shards parameters, gradients and optimizer state over `fsdp`, and the batch over it too.

    Each parameter is sharded on its widest role: the model width first, then whatever else it has.
    """

    def param_rules(self) -> Rules:
        """Returns the order in which a parameter's axes are tried."""
        tried = ("embed", "mlp", "vocab", "heads", "head_dim")
        return tuple((axis, ("fsdp",)) for axis in tried)

    def activation_rules(self) -> Rules:
        """Returns the batch's axes, outermost first, as one rule: every data-like axis splits the batch."""
        return (("batch", ("replica", "data", "fsdp")),)
