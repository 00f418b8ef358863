"""Tensor parallelism with sequence-parallel norms (Megatron-LM, arXiv:1909.08053; Korthikanti et al. 2022,
arXiv:2205.05198), vocabulary included.
"""

from kanawa.arrays.rules import Rules
from kanawa.contracts import Strategy

from kanawa_parallel.rules import BATCH


class TensorParallel(Strategy):
    """Splits heads, the feed-forward's hidden width and the vocabulary over `tensor`.

    Between blocks the residual stream is split on its length over `tensor` too, so that norms and residual sums cost
    and keep 1/n; a gather before each matmul and a scatter after take the place of an all-reduce. `sequence=False`
    keeps the stream whole, for lengths that don't divide. List it before context parallelism. Key heads fewer than
    `tensor`: `split_key_heads=False` keeps their weights whole.
    """

    class Config(Strategy.Config):
        sequence: bool = True
        split_key_heads: bool = True

    def param_rules(self) -> Rules:
        """Returns what is split in weights."""
        return self._wide()

    def activation_rules(self) -> Rules:
        """Returns what is split in activations; length comes last, to take `tensor` only where nothing else can."""
        length = ("context", "tensor") if self.config.sequence else ("context",)
        return (*BATCH, *self._wide(), ("length", length))

    def _wide(self) -> Rules:
        axes = ["heads", "mlp", "vocab"]
        if self.config.split_key_heads:
            axes.insert(1, "kv_heads")
        return tuple((axis, ("tensor",)) for axis in axes)
