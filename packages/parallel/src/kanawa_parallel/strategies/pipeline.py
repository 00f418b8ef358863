"""Pipeline parallelism: layers live on stages, activations travel, and stages share the vocabulary."""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy


class Pipeline(Strategy):
    """Puts the layers of a stack, its caches and its activations by stage on the mesh axis `stage`; list it first.

    Embedding and head are no stage's: each stage holds and computes a part of the vocabulary, with `tensor` a part of
    that, so that they cost every stage the same and no stage needs fewer layers. `split_vocab=False` gives every stage
    all of it.
    """

    class Config(Strategy.Config):
        split_vocab: bool = True

    def param_rules(self) -> Rules:
        """Returns the rule for stacked parameters: the only strategy that splits them by layer."""
        return (("layers", ("stage",)), *self._vocab())

    def activation_rules(self) -> Rules:
        """Returns the rules for streams by stage, for stacked caches and for logits."""
        return (("stage", ("stage",)), ("layers", ("stage",)), *self._vocab())

    def _vocab(self) -> Rules:
        # Of one dimension the first rule that finds any axis wins, so this one names those of tensor parallelism too.
        return (("vocab", ("stage", "tensor")),) if self.config.split_vocab else ()
