"""The cycles that a TPU's compiler estimates for a whole program, which has kernels and collectives beside them."""

from collections import Counter

from kanawa_parallel.plan.read.hlo import HloModule
from kanawa_parallel.plan.read.loops import executions


def cycles_by_runs(module: HloModule) -> Counter[float]:
    """Returns the estimated cycles of all runs of a program's instructions, by how often they run.

    A stack that is scanned over n layers is what runs n times; the sum is the program's. Kernels and collectives carry
    no estimate and count as nothing.
    """
    # A fusion's own line has the estimate of all that it holds.
    inside = {
        name
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode == "fusion"
        for name in instruction.called
    }
    total: Counter[float] = Counter()
    for name, runs in executions(module).items():
        if name in inside:
            continue
        for instruction in module.computations[name].instructions:
            # What calls others may repeat their sum.
            if instruction.opcode not in ("while", "call", "conditional") and instruction.estimated_cycles is not None:
                total[runs] += instruction.estimated_cycles * runs
    return total
