"""Pipeline parallelism: layers live on stages, and activations travel."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy


class Pipeline(Strategy):
    """Puts the layers of a stack, its caches and its activations by stage on the mesh axis `stage`; list it first."""

    def param_rules(self) -> Rules:
        """Returns the rule for stacked parameters: the only strategy that splits them by layer."""
        return (("layers", ("stage",)),)

    def activation_rules(self) -> Rules:
        """Returns the rules for streams by stage and for stacked caches."""
        return (("stage", ("stage",)), ("layers", ("stage",)))
