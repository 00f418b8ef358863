"""FLOPs of one run of an instruction: matmuls, convolutions, and kernels by their stated or known cost.

Two FLOPs for each multiply and add. Some compilers write matmuls as padded convolutions, so only pairs of an
output and a tap that land inside the operand count. Elementwise arithmetic is left out, as in the analytic count.
"""

import json
import math
import re

from kanawa_parallel.plan.read.hlo import ArrayShape, Computation, Instruction, arrays

_STATED = re.compile(r'"cost_estimate":\{[^}]*?"flops":"?(\d+)')
_WINDOW_FIELD = re.compile(r"(\w+)=(\S+)")


def flops(computation: Computation, instruction: Instruction) -> float:
    """Returns the FLOPs of the instruction itself; what it calls is counted where that stands."""
    # One that is started and awaited elsewhere does its work all the same.
    opcode = instruction.opcode.removesuffix("-start")
    if opcode == "dot":
        return _dot(computation, instruction)
    if opcode == "convolution":
        return _convolution(computation, instruction)
    if opcode == "custom-call":
        return _stated(instruction) or _gemm(computation, instruction)
    return 0.0


def operand_array(computation: Computation, instruction: Instruction, index: int) -> ArrayShape | None:
    """Returns the shape of an operand: as written beside it, else as its own instruction yields it."""
    if index >= len(instruction.operands):
        return None
    made = computation.by_name.get(instruction.operands[index])
    if made is not None:
        return made.arrays[0] if made.arrays else None
    written = arrays(instruction.operand_text)
    return written[index] if index < len(written) else None


def numbers(text: str | None) -> list[int]:
    """Returns the integers in an attribute such as "{1,0}"."""
    return [int(n) for n in re.findall(r"-?\d+", text or "")]


def _dot(computation: Computation, dot: Instruction) -> float:
    left = operand_array(computation, dot, 0)
    if left is None or not dot.arrays:
        return 0.0
    # Batch dimensions are in the result's size already, so only contracted ones are left.
    contracted = numbers(dot.attribute("lhs_contracting_dims"))
    return 2.0 * dot.arrays[0].size * math.prod(left.dims[d] for d in contracted)


def _stated(call: Instruction) -> float:
    match = _STATED.search(call.attributes)
    return float(match[1]) if match else 0.0


def _gemm(computation: Computation, call: Instruction) -> float:
    """Returns the FLOPs of a library matmul, from the dimension numbers in its configuration."""
    target = call.attribute("custom_call_target") or ""
    left = operand_array(computation, call, 0)
    if "matmul" not in target and "gemm" not in target or left is None or not call.arrays:
        return 0.0
    dimensions = re.search(r'"dot_dimension_numbers":(\{[^}]*\})', call.attributes)
    if dimensions:
        contracted = [int(d) for d in json.loads(dimensions[1]).get("lhs_contracting_dimensions", [])]
        return 2.0 * call.arrays[0].size * math.prod(left.dims[d] for d in contracted)
    # Without its configuration: taken to contract the last dimension, as most do.
    return 2.0 * call.arrays[0].size * left.dims[-1]


def _convolution(computation: Computation, conv: Instruction) -> float:
    left, right = (operand_array(computation, conv, i) for i in (0, 1))
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", conv.attributes)
    if left is None or right is None or labels is None or not conv.arrays:
        return 0.0
    out = conv.arrays[0]
    window = _window(conv)
    pairs = 1
    # Labels such as b01f_01io->b01f: digits are spatial dimensions, all but two of the letters' places.
    for position in range(len(labels[1]) - 2):
        at = str(position)
        pairs *= _pairs(
            left.dims[labels[1].index(at)], out.dims[labels[3].index(at)], right.dims[labels[2].index(at)],
            *(window[field][position] for field in ("stride", "low", "lhs_dilate", "rhs_dilate")),
        )  # fmt: skip
    # The kernel's own `i` is features of one group, so grouped (depthwise) convolutions need no case of their own.
    per_pair = out.dims[labels[3].index("b")] * out.dims[labels[3].index("f")] * right.dims[labels[2].index("i")]
    return 2.0 * pairs * per_pair


def _window(conv: Instruction) -> dict[str, list[int]]:
    """Returns stride, low padding and dilations for each spatial dimension."""
    window = re.search(r"window=\{([^}]*)\}", conv.attributes)
    fields = dict(_WINDOW_FIELD.findall(window[1])) if window else {}
    rank = len(fields.get("size", "").split("x")) if fields else 0

    def ints(name: str, default: int) -> list[int]:
        text = fields.get(name)
        # Padding is written low_high; the high side follows from the output's size.
        return [default] * rank if text is None else [int(part.split("_")[0]) for part in text.split("x")]

    return {
        "stride": ints("stride", 1),
        "low": ints("pad", 0),
        "lhs_dilate": ints("lhs_dilate", 1),
        "rhs_dilate": ints("rhs_dilate", 1),
    }


def _pairs(size: int, outputs: int, taps: int, stride: int, low: int, lhs_dilate: int, rhs_dilate: int) -> int:
    """Returns how many (output, tap) pairs of one dimension read an element that is there."""
    # A pointwise dimension: every output reads the element of its own place.
    if taps == 1 and low == 0 and stride == 1 and lhs_dilate == 1:
        return min(outputs, size)
    reach = (size - 1) * lhs_dilate + 1
    count = 0
    for tap in range(taps):
        # Output o reads place o * stride + offset of the operand, dilated by lhs_dilate: there if within [0, reach).
        offset = tap * rhs_dilate - low
        # Counted by the first and last output that a tap reaches: images have many outputs, kernels few taps.
        if lhs_dilate == 1:
            first = max(0, -(offset // stride))
            last = min(outputs - 1, (reach - 1 - offset) // stride)
            count += max(0, last - first + 1)
        else:
            # Between the elements of a dilated operand lie zeros, which cost nothing that counts.
            places = (o * stride + offset for o in range(outputs))
            count += sum(0 <= place < reach and place % lhs_dilate == 0 for place in places)
    return count
