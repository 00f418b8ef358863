"""Which matmuls of its own this process has, beside XLA's."""

import functools

from kanawa_backends_cpu import onednn
from kanawa_backends_cpu.native.available import why_not
from kanawa_backends_cpu.processor import processor

#: What the code of `matmul.cpu.dots` takes at once: numbers of the contracted dimension, and columns.
DOTS_CHUNK, DOTS_COLUMNS = 32, 8


@functools.cache
def why_no_native() -> str | None:
    """Returns why native matmuls can't run here, or None."""
    reason = why_not()
    if reason is None and processor().vector_registers is None:
        reason = f"no native matmul was written for {processor().name}"
    return reason


def why_no_onednn(dtype: str) -> str | None:
    """Returns why oneDNN's matmul isn't used here for operands of a dtype, or None."""
    if not onednn.available():
        return "this jaxlib has no oneDNN for this processor"
    if dtype == "bfloat16" and not processor().has_bf16_units:
        return f"{processor().name} has no units for bfloat16, without which XLA is faster"
    return None
