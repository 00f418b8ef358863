"""Attention whose queries and keys are both split along the sequence.

Without such a strategy in the plan, or where it refuses, keys are gathered and every shard attends from its queries to
all keys.
"""

import abc
from collections.abc import Mapping
from typing import ClassVar

import jax
from kanawa.arrays.plan import Distributed
from kanawa.kernels.attention.problem import ATTENTION, AttentionProblem
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.operation import Kernel, Operands
from kanawa.kernels.selection import select
from kanawa.kernels.sharded import Split, call_split, split_operands
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.module.context import record_kernel

#: As the operation's own, but with keys split like queries.
_AXES = {
    **ATTENTION.operand_axes,
    "k": ("batch", "length", "heads", None),
    "v": ("batch", "length", "heads", None),
    "kv_positions": ("batch", "length"),
    "kv_segment_ids": ("batch", "length"),
}


class AttentionOverShards(Distributed):
    """Exact attention over `shards` equal parts of a sequence, part i on shard i, in shard_map over mesh `axes`."""

    operation: ClassVar[str] = "attention"

    @abc.abstractmethod
    def supports(self, problem: AttentionProblem, shards: int) -> Verdict:
        """Returns whether it can do the problem that one shard sees: its queries, its keys, the whole mask."""

    @abc.abstractmethod
    def blocks(self, problem: AttentionProblem, shards: int) -> Mapping[str, AttentionProblem]:
        """Returns the problems of its kernels, by names of its own; a kernel is chosen for each."""

    @abc.abstractmethod
    def attend(
        self, problem: AttentionProblem, operands: Operands, kernels: Mapping[str, Kernel], axes: tuple[str, ...]
    ) -> jax.Array:
        """Returns one shard's out [B, T / shards, H, Dv] from its operands; differentiable."""

    def through(self, problem: AttentionProblem, operands: Operands) -> jax.Array | None:
        """Returns the output for a sequence that is split; None where it isn't, or this can't be done."""
        split = split_operands(ATTENTION, _AXES, operands)
        axes = split.assigned.get("length", ())
        # One query can't be split: a decoding step reads keys in place.
        if not axes or problem.q_length == 1:
            return None
        local = problem.localize(split.shapes)
        shards = problem.q_length // local.q_length
        verdict = _refusal(problem, split) or self.supports(local, shards)
        refused = () if verdict else ((self.name, verdict.reason),)
        chosen = self.name if verdict else "gather"
        record_kernel(KernelChoice("attention_over_shards", f"{problem.describe()} over {shards}", chosen, refused))
        if not verdict:
            return None
        kernels = {}
        for name, block in self.blocks(local, shards).items():
            selection = select(ATTENTION, block)
            record_kernel(selection.choice)
            kernels[name] = selection.kernel
        return call_split(ATTENTION, split, lambda shard: self.attend(local, shard, kernels, axes), operands)


def _refusal(problem: AttentionProblem, split: Split) -> Verdict | None:
    """Returns why no strategy could do it, or None."""
    verdict = first_refusal(
        (bool(split.error), split.error),
        (problem.paged or problem.has_kv_lengths, "keys come from a cache"),
        (bool(problem.extras), f"parts of a sequence don't take {', '.join(sorted(problem.extras))}"),
        (problem.q_length != problem.kv_length, f"{problem.q_length} queries and {problem.kv_length} keys"),
    )
    return None if verdict else verdict
