"""What fused kernels cost that state no cost of their own: attention and grouped matmul, by the shapes they take."""

import re
from dataclasses import dataclass

from kanawa_parallel.plan.cost.flops import operand_array
from kanawa_parallel.plan.read.hlo import Computation, Instruction

#: Matmuls of [queries, width] by [keys, width] that each attention kernel does, by what its name says.
_ATTENTION = (
    (re.compile(r"dkv_and_dq|fused_bwd|flash.*bwd_d|fmha\w*Backward", re.IGNORECASE), 5),
    (re.compile(r"splash\w*_dkv|_bwd_dkv", re.IGNORECASE), 4),
    (re.compile(r"splash\w*_dq|_bwd_dq", re.IGNORECASE), 3),
    (re.compile(r"splash\w*_fwd|fmhaSoftmax|flash\w*|fmha|\bmha\w*", re.IGNORECASE), 2),
)
_GROUPED = re.compile(r"gmm|grouped_matmul|ragged_dot", re.IGNORECASE)


@dataclass(frozen=True)
class SeenKeys:
    """How many keys a query sees on average in a program's attention; None if nothing says so: then all."""

    average: float | None = None

    @classmethod
    def of(cls, problem: str) -> "SeenKeys":
        """Reads a kernel manifest's problem text, such as "q[4,4096,32,128] kv[4,4096,8,128] causal"."""
        lengths = re.search(r"q\[\d+,(\d+),.*?kv\[\d+,(\d+),", problem)
        if lengths is None:
            return cls()
        queries, keys = int(lengths[1]), int(lengths[2])
        if "causal" not in problem:
            return cls(float(keys))
        window = re.search(r"window\D*(\d+)", problem)
        seen = keys - (queries - 1) / 2
        return cls(min(seen, float(window[1]) + 1) if window else seen)


def kernel_flops(computation: Computation, call: Instruction, seen: SeenKeys) -> float:
    """Returns the FLOPs of a known kernel; 0 for any other custom call."""
    label = " ".join((call.name, call.op_name.rpartition("/shard_map/")[2], call.attribute("custom_call_target") or ""))
    if call.opcode != "custom-call" or not _is_kernel(call):
        return 0.0
    for pattern, matmuls in _ATTENTION:
        if pattern.search(label):
            return matmuls * _pair_flops(computation, call, seen)
    if _GROUPED.search(label):
        wide = [operand_array(computation, call, i) for i in range(len(call.operands))]
        matrices = [a for a in wide if a is not None and len(a.dims) in (2, 3) and a.dtype.startswith(("bf", "f"))]
        if len(matrices) >= 2 and call.arrays:
            return (
                2.0 * matrices[0].size * (matrices[1].dims[-1] if len(matrices[1].dims) == 3 else matrices[1].dims[1])
            )
    return 0.0


def _is_kernel(call: Instruction) -> bool:
    target = call.attribute("custom_call_target") or ""
    return any(mark in target for mark in ("tpu_custom_call", "fmha", "triton", "mosaic"))


def _pair_flops(computation: Computation, call: Instruction, seen: SeenKeys) -> float:
    """Returns the FLOPs of one matmul over the query-key pairs: 2 * rows * heads * queries * keys seen * width.

    Kernels take [rows, heads, length, width] or [rows, length, heads, width].
    """
    found = [operand_array(computation, call, i) for i in range(len(call.operands))]
    wide = [a for a in found if a is not None and a.dtype in ("bf16", "f16", "f32") and len(a.dims) >= 3]
    if len(wide) < 2:
        return 0.0
    q, k = wide[0], wide[1]
    return 2.0 * q.size * (max(k.dims[-3:-1]) if seen.average is None else seen.average)
