"""A schedule after DualPipe (DeepSeek-V3, arXiv:2412.19437, 3.2.1): forwards and backwards in pairs."""

from kanawa_parallel.pipeline.modifier import PipelineParts
from kanawa_parallel.pipeline.one_forward_one_backward import OneForwardOneBackward
from kanawa_parallel.pipeline.stack import PipelinedStack


def dualpipe(microbatches: int, rounds: int) -> PipelineParts:
    """Zero bubble of at least two rounds, in which a tick's forward and backward don't wait for each other.

    So what one of them exchanges can run beside what the other computes. Stages run in step, where DualPipe's second
    direction would save no tick and needs every parameter twice: microbatches all go one way.
    """
    stack = PipelinedStack.Config(microbatches=microbatches, rounds=max(rounds, 2))
    return PipelineParts(stack, OneForwardOneBackward.Config(microbatches=microbatches, split=True, paired=True))
